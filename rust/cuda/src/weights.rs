//! The position of each weight on the device, and the copies that load it. At load only.
//! Projections that share their input form one matrix: q, k and v; gate and up. Norm weights and
//! biases are f32 vectors; everything else has the device's number format.

use ingle_model::{
    CopyPlan, FeedForwardSpec, LayerWeight, ModelSpec, MoeSpec, TensorView, WeightRole, WeightType,
};

use crate::CudaError;
use crate::arena::LayoutBuilder;
use crate::device_slice::{DeviceSlice, Weight};

/// The addresses of all weights.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    pub(crate) embedding: DeviceSlice<Weight>,
    pub(crate) final_norm: DeviceSlice<f32>,
    pub(crate) lm_head: DeviceSlice<Weight>,
    pub(crate) layers: Vec<LayerWeights>,
}

/// Those of one layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerWeights {
    pub(crate) input_norm: DeviceSlice<f32>,
    /// `[(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]`, q rows first, then k, then v.
    pub(crate) qkv: DeviceSlice<Weight>,
    pub(crate) qkv_bias: Option<DeviceSlice<f32>>,
    pub(crate) q_norm: Option<DeviceSlice<f32>>,
    pub(crate) k_norm: Option<DeviceSlice<f32>>,
    pub(crate) output: DeviceSlice<Weight>,
    pub(crate) output_bias: Option<DeviceSlice<f32>>,
    pub(crate) post_attention_norm: Option<DeviceSlice<f32>>,
    pub(crate) feed_forward_norm: DeviceSlice<f32>,
    pub(crate) post_feed_forward_norm: Option<DeviceSlice<f32>>,
    pub(crate) feed_forward: FeedForwardWeights,
}

/// Those of a layer's second part.
#[derive(Clone, Debug)]
pub(crate) enum FeedForwardWeights {
    /// One network.
    Dense {
        /// `[2 * intermediate_size, hidden_size]`, gate rows first.
        gate_up: DeviceSlice<Weight>,
        gate_up_bias: Option<DeviceSlice<f32>>,
        down: DeviceSlice<Weight>,
        down_bias: Option<DeviceSlice<f32>>,
        intermediate_size: u32,
    },
    /// Experts, each as `Dense`, one after the other.
    Moe {
        router: DeviceSlice<Weight>,
        gate_up: DeviceSlice<Weight>,
        down: DeviceSlice<Weight>,
        spec: MoeSpec,
    },
}

/// What becomes of a tensor on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conversion {
    /// To the device type, unchanged if it is stored so.
    Matrix,
    /// To f32, each element plus `add_one`.
    Vector { add_one: bool },
}

/// One tensor's way to the device.
#[derive(Clone, Debug)]
pub(crate) struct CopyJob {
    pub(crate) view: TensorView,
    pub(crate) conversion: Conversion,
    pub(crate) destination: DeviceSlice<u8>,
}

/// All weights, the copies that fill them, and the bytes they take.
#[derive(Debug)]
pub(crate) struct WeightLayout {
    pub(crate) weights: Weights,
    pub(crate) jobs: Vec<CopyJob>,
    pub(crate) bytes: u64,
}

impl WeightLayout {
    /// Takes a model's weights from `layout`.
    ///
    /// # Errors
    /// A tensor that the spec calls for and the plan lacks.
    pub(crate) fn new(
        layout: LayoutBuilder,
        spec: &ModelSpec,
        plan: &CopyPlan,
    ) -> Result<Self, CudaError> {
        let mut builder = Builder { spec, plan, layout, jobs: Vec::new() };
        let embedding = builder.matrix(&[WeightRole::Embedding])?;
        let final_norm = builder.norm(WeightRole::FinalNorm)?;
        let lm_head = if spec.tie_word_embeddings {
            embedding
        } else {
            builder.matrix(&[WeightRole::LmHead])?
        };
        let layers = (0..spec.layers.len() as u32)
            .map(|layer| builder.layer(layer))
            .collect::<Result<Vec<_>, _>>()?;
        let weights = Weights { embedding, final_norm, lm_head, layers };
        Ok(Self { weights, jobs: builder.jobs, bytes: builder.layout.bytes() })
    }
}

struct Builder<'a> {
    spec: &'a ModelSpec,
    plan: &'a CopyPlan,
    layout: LayoutBuilder,
    jobs: Vec<CopyJob>,
}

impl Builder<'_> {
    fn layer(&mut self, layer: u32) -> Result<LayerWeights, CudaError> {
        use LayerWeight::*;
        let attention = self.spec.attention;
        let post_norms = self.spec.post_norms;
        let role = |part| WeightRole::Layer(layer, part);
        Ok(LayerWeights {
            input_norm: self.norm(role(InputNorm))?,
            qkv: self.matrix(&[role(Query), role(Key), role(Value)])?,
            qkv_bias: self.vectors_if(
                attention.qkv_bias,
                &[role(QueryBias), role(KeyBias), role(ValueBias)],
            )?,
            q_norm: self.norm_if(attention.qk_norm, role(QueryNorm))?,
            k_norm: self.norm_if(attention.qk_norm, role(KeyNorm))?,
            output: self.matrix(&[role(Output)])?,
            output_bias: self.vectors_if(attention.o_bias, &[role(OutputBias)])?,
            post_attention_norm: self.norm_if(post_norms, role(PostAttentionNorm))?,
            feed_forward_norm: self.norm(role(FeedForwardNorm))?,
            post_feed_forward_norm: self.norm_if(post_norms, role(PostFeedForwardNorm))?,
            feed_forward: self.feed_forward(layer)?,
        })
    }

    fn feed_forward(&mut self, layer: u32) -> Result<FeedForwardWeights, CudaError> {
        use LayerWeight::*;
        let role = |part| WeightRole::Layer(layer, part);
        match self.spec.layers[layer as usize].feed_forward {
            FeedForwardSpec::Dense { intermediate_size, bias } => Ok(FeedForwardWeights::Dense {
                gate_up: self.matrix(&[role(Gate), role(Up)])?,
                gate_up_bias: self.vectors_if(bias, &[role(GateBias), role(UpBias)])?,
                down: self.matrix(&[role(Down)])?,
                down_bias: self.vectors_if(bias, &[role(DownBias)])?,
                intermediate_size,
            }),
            FeedForwardSpec::Moe(spec) => {
                let experts = 0..spec.num_experts;
                let gate_up: Vec<_> = experts
                    .clone()
                    .flat_map(|e| [role(ExpertGate(e)), role(ExpertUp(e))])
                    .collect();
                let down: Vec<_> = experts.map(|e| role(ExpertDown(e))).collect();
                Ok(FeedForwardWeights::Moe {
                    router: self.matrix(&[role(Router)])?,
                    gate_up: self.matrix(&gate_up)?,
                    down: self.matrix(&down)?,
                    spec,
                })
            }
        }
    }

    /// The tensors one after the other, in the device's number format.
    fn matrix(&mut self, roles: &[WeightRole]) -> Result<DeviceSlice<Weight>, CudaError> {
        self.place(roles, Conversion::Matrix)
    }

    fn norm(&mut self, role: WeightRole) -> Result<DeviceSlice<f32>, CudaError> {
        let add_one = self.spec.norm.plus_one;
        self.place(&[role], Conversion::Vector { add_one })
    }

    fn norm_if(
        &mut self,
        wanted: bool,
        role: WeightRole,
    ) -> Result<Option<DeviceSlice<f32>>, CudaError> {
        wanted.then(|| self.norm(role)).transpose()
    }

    fn vectors_if(
        &mut self,
        wanted: bool,
        roles: &[WeightRole],
    ) -> Result<Option<DeviceSlice<f32>>, CudaError> {
        let conversion = Conversion::Vector { add_one: false };
        wanted.then(|| self.place(roles, conversion)).transpose()
    }

    fn place<T>(
        &mut self,
        roles: &[WeightRole],
        conversion: Conversion,
    ) -> Result<DeviceSlice<T>, CudaError> {
        let mut views = Vec::with_capacity(roles.len());
        for role in roles {
            let view = self.plan.tensors.get(role).ok_or_else(|| {
                CudaError::Unsupported(format!("the checkpoint has no tensor for {role:?}"))
            })?;
            if view.weight_type == WeightType::F8E4M3 || view.quantise {
                return Err(CudaError::Unsupported(format!(
                    "tensor {}: fp8 weights are not supported on cuda yet; device cpu computes them",
                    view.name
                )));
            }
            views.push(view);
        }
        let elements = |view: &TensorView| u64::from(view.rows) * u64::from(view.cols);
        let total: u64 = views.iter().map(|view| elements(view)).sum();
        let all = self.layout.take(total);
        let mut start = 0;
        for view in views {
            let destination = all.slice(start, elements(view)).as_bytes();
            self.jobs.push(CopyJob { view: view.clone(), conversion, destination });
            start += elements(view);
        }
        Ok(all)
    }
}

/// Bytes of a bf16 or f16 element.
pub(crate) const DEVICE_TYPE_BYTES: u64 = size_of::<Weight>() as u64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reference model: all its tensors are placed once, none over another, merged ones in order.
    #[test]
    fn every_tensor_of_every_model_has_its_place() {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models");
        let mut seen = 0;
        for entry in std::fs::read_dir(models).unwrap() {
            let checkpoint = ingle_model::open(&entry.unwrap().path()).unwrap();
            let (spec, plan) = (&checkpoint.spec, &checkpoint.plan);
            if plan.tensors.values().any(|view| view.weight_type == WeightType::F8E4M3) {
                let refused = WeightLayout::new(LayoutBuilder::measuring(), spec, plan);
                let error = refused.unwrap_err().to_string();
                assert!(error.contains("fp8 weights are not supported on cuda yet"), "{error}");
                continue;
            }
            let layout = WeightLayout::new(LayoutBuilder::measuring(), spec, plan).unwrap();
            assert_eq!(layout.jobs.len(), plan.tensors.len(), "{checkpoint:?}");
            let mut spans: Vec<(u64, u64)> = layout
                .jobs
                .iter()
                .map(|job| {
                    let elements = u64::from(job.view.rows) * u64::from(job.view.cols);
                    let bytes = if job.conversion == Conversion::Matrix { 2 } else { 4 };
                    let start = job.destination.address();
                    assert_eq!(job.destination.len(), elements * bytes, "{:?}", job.view);
                    (start, start + elements * bytes)
                })
                .collect();
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{checkpoint:?}");
            let last = spans.last().unwrap().1;
            assert!(spans[0].0 >= 256 && last <= layout.bytes);
            let q_bytes =
                u64::from(spec.num_attention_heads * spec.head_dim * spec.hidden_size) * 2;
            let address = |part| {
                let view = &plan.tensors[&WeightRole::Layer(0, part)];
                layout.jobs.iter().find(|job| job.view == *view).unwrap().destination.address()
            };
            assert_eq!(address(LayerWeight::Key), layout.weights.layers[0].qkv.address() + q_bytes);
            seen += 1;
        }
        assert_eq!(seen, 15);
    }
}
