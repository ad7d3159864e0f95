//! Gives each weight its place on the device, and lists the copies that fill it. At load only.

use ingle_model::{
    CopyPlan, DeltaNetSpec, FeedForwardSpec, LayerWeight, ModelSpec, MoeSpec, QkNorm, TensorView,
    TokenInputSpec, WeightRole,
};

use crate::CudaError;
use crate::arena::LayoutBuilder;
use crate::device_slice::{DeviceSlice, Weight};
use crate::four_bit::FourBitForm;
use crate::matrix::Matrix;
use crate::rope_build::KeyParts;
use crate::weights::{
    AttentionWeights, DeltaWeights, ExpertNorms, ExpertWeights, FeedForwardWeights, LayerWeights,
    Mixer, SharedWeights, TokenGateWeights, TokenInputWeights, Weights,
};

/// What becomes of a tensor on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Conversion {
    /// To the device type, unchanged if it is stored so.
    Matrix,
    /// To e4m3 with a scale each row, unchanged if it is stored so.
    E4m3,
    /// 4-bit codes to records.
    FourBit(FourBitForm),
    /// To f32.
    Vector(Change),
}

/// One tensor's way to the device.
#[derive(Clone, Debug)]
pub(crate) struct CopyJob {
    pub(crate) view: TensorView,
    pub(crate) conversion: Conversion,
    pub(crate) destination: DeviceSlice<u8>,
    /// `[rows]`, for `Conversion::E4m3`.
    pub(crate) scale: DeviceSlice<f32>,
}

impl CopyJob {
    /// Of a vector: what happens to its elements.
    pub(crate) fn vector(&self) -> Option<Change> {
        match self.conversion {
            Conversion::Vector(change) => Some(change),
            Conversion::Matrix | Conversion::E4m3 | Conversion::FourBit(_) => None,
        }
    }
}

/// What happens to each element of a vector: `(element + add) * factor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) add: f32,
    pub(crate) factor: f32,
}

impl Change {
    /// None.
    pub(crate) const NONE: Self = Self { add: 0.0, factor: 1.0 };
}

/// Which quantised matrices of layers stay so; others become the device type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// fp8 ones.
    pub(crate) e4m3: bool,
    /// 4-bit ones, apart from experts'.
    pub(crate) four_bit: bool,
    /// 4-bit ones of experts.
    pub(crate) four_bit_experts: bool,
}

/// All weights, the copies that fill them, and the bytes they take.
#[derive(Debug)]
pub(crate) struct WeightLayout {
    pub(crate) weights: Weights,
    pub(crate) jobs: Vec<CopyJob>,
    pub(crate) bytes: u64,
    /// As asked for.
    pub(crate) kept: Kept,
}

impl WeightLayout {
    /// Takes a model's weights from `layout`. Quantised matrices of layers stay so if `kept` says it, fp8 ones where
    /// their scales allow it (one each row or fewer), 4-bit ones where `FourBitForm` has their form.
    ///
    /// # Errors
    /// A tensor that the spec calls for and the plan lacks.
    pub(crate) fn new(
        layout: LayoutBuilder,
        spec: &ModelSpec,
        plan: &CopyPlan,
        kept: Kept,
    ) -> Result<Self, CudaError> {
        let mut builder = Builder { spec, plan, kept, layout, jobs: Vec::new() };
        let embedding = builder.matrix(&[WeightRole::Embedding])?;
        let final_norm = builder.norm(WeightRole::FinalNorm)?;
        let head_norm = match spec.logit_scale {
            1.0 => final_norm,
            factor => builder.scaled_norm(WeightRole::FinalNorm, factor)?,
        };
        let lm_head = if spec.tie_word_embeddings {
            embedding
        } else {
            builder.matrix(&[WeightRole::LmHead])?
        };
        let token_input = spec.token_input.map(|input| builder.token_input(input)).transpose()?;
        let layers = (0..spec.layers.len() as u32)
            .map(|layer| builder.layer(layer))
            .collect::<Result<Vec<_>, _>>()?;
        let weights = Weights { embedding, final_norm, head_norm, lm_head, token_input, layers };
        Ok(Self { weights, jobs: builder.jobs, bytes: builder.layout.bytes(), kept })
    }
}

impl WeightLayout {
    /// How many tensors are fp8, in the file or by request, and how many of them become the device type.
    pub(crate) fn fp8_tensors(&self) -> (usize, usize) {
        let is_fp8 = |job: &&CopyJob| job.view.quantise || job.view.scale.is_some();
        let fp8 = self.jobs.iter().filter(is_fp8);
        (fp8.clone().count(), fp8.filter(|job| job.conversion != Conversion::E4m3).count())
    }

    /// How many tensors are 4-bit codes with scales, and how many of them become the device type. GGUF's count where
    /// they do not.
    pub(crate) fn four_bit_tensors(&self) -> (usize, usize) {
        let is_packed = |job: &&CopyJob| matches!(job.conversion, Conversion::FourBit(_));
        let is_widened = |job: &&CopyJob| job.view.groups.is_some() && !is_packed(job);
        let widened = self.jobs.iter().filter(is_widened).count();
        (self.jobs.iter().filter(is_packed).count() + widened, widened)
    }
}

struct Builder<'a> {
    spec: &'a ModelSpec,
    plan: &'a CopyPlan,
    kept: Kept,
    layout: LayoutBuilder,
    jobs: Vec<CopyJob>,
}

impl Builder<'_> {
    fn layer(&mut self, layer: u32) -> Result<LayerWeights, CudaError> {
        use LayerWeight::*;
        let (pre_norms, post_norms) = (self.spec.pre_norms, self.spec.post_norms);
        let role = |part| WeightRole::Layer(layer, part);
        let net = self.spec.layers[layer as usize].delta_net;
        Ok(LayerWeights {
            input_norm: self.norm_if(pre_norms, role(InputNorm))?,
            mixer: match net {
                Some(net) => Mixer::DeltaNet(self.delta_net(layer, &net)?),
                None => Mixer::Attention(self.attention(layer)?),
            },
            post_attention_norm: self.norm_if(post_norms, role(PostAttentionNorm))?,
            feed_forward_norm: self.norm_if(pre_norms, role(FeedForwardNorm))?,
            post_feed_forward_norm: self.norm_if(post_norms, role(PostFeedForwardNorm))?,
            feed_forward: self.feed_forward(layer)?,
            token_gate: self
                .spec
                .token_input
                .map(|input| self.token_gate(layer, input))
                .transpose()?,
            scale: self.vectors_if(self.spec.scales_layers, &[role(Scale)])?,
        })
    }

    fn token_input(&mut self, input: TokenInputSpec) -> Result<TokenInputWeights, CudaError> {
        Ok(TokenInputWeights {
            num_layers: self.spec.layers.len() as u32,
            size: input.size,
            embedding: self.matrix(&[WeightRole::TokenInputEmbedding])?,
            projection: self.matrix(&[WeightRole::TokenInputProjection])?,
            norm: self.norm(WeightRole::TokenInputNorm)?,
        })
    }

    fn token_gate(
        &mut self,
        layer: u32,
        input: TokenInputSpec,
    ) -> Result<TokenGateWeights, CudaError> {
        use LayerWeight::*;
        let role = |part| WeightRole::Layer(layer, part);
        Ok(TokenGateWeights {
            size: input.size,
            gate: self.matrix(&[role(TokenGate)])?,
            output: self.matrix(&[role(TokenOutput)])?,
            norm: self.norm(role(TokenNorm))?,
        })
    }

    fn attention(&mut self, layer: u32) -> Result<AttentionWeights, CudaError> {
        use LayerWeight::*;
        let attention = self.spec.attention;
        let has_weights = matches!(attention.qk_norm, QkNorm::Head | QkNorm::Full);
        let role = |part| WeightRole::Layer(layer, part);
        let parts = KeyParts::of(&self.spec.layers[layer as usize]).count() as usize;
        let qkv = [role(Query), role(Key), role(Value)];
        let biases = [role(QueryBias), role(KeyBias), role(ValueBias)];
        Ok(AttentionWeights {
            qkv: self.linear(&qkv[..=parts], true)?,
            qkv_bias: self.vectors_if(attention.qkv_bias, &biases[..=parts])?,
            q_norm: self.norm_if(has_weights, role(QueryNorm))?,
            k_norm: self.norm_if(has_weights && parts > 0, role(KeyNorm))?,
            sinks: self.vectors_if(attention.sinks, &[role(Sinks)])?,
            output: self.linear(&[role(Output)], true)?,
            output_bias: self.vectors_if(attention.o_bias, &[role(OutputBias)])?,
        })
    }

    fn delta_net(&mut self, layer: u32, net: &DeltaNetSpec) -> Result<DeltaWeights, CudaError> {
        use LayerWeight::*;
        let role = |part| WeightRole::Layer(layer, part);
        let parts = [role(DeltaQuery), role(DeltaKey), role(DeltaValue), role(DeltaGate)];
        let scores = [role(DeltaBeta), role(DeltaDecay)];
        let packed = if self.kept.four_bit { self.packed(&parts)? } else { None };
        let joins = net.input_rows().is_multiple_of(8) && packed.is_none();
        let input = match packed {
            Some(packed) => packed,
            None if joins => Matrix::Plain(self.matrix(&[&parts[..], &scores].concat())?),
            None => Matrix::Plain(self.matrix(&parts)?),
        };
        Ok(DeltaWeights {
            input,
            scores: if joins { None } else { Some(self.matrix(&scores)?) },
            conv: self.vector(role(DeltaConv))?,
            log_rate: self.vector(role(DeltaLogRate))?,
            decay_bias: self.vector(role(DeltaBias))?,
            // Not one of those that are stored less one.
            norm: self.vector(role(DeltaNorm))?,
            output: self.linear(&[role(DeltaOutput)], false)?,
        })
    }

    fn feed_forward(&mut self, layer: u32) -> Result<FeedForwardWeights, CudaError> {
        use LayerWeight::*;
        let role = |part| WeightRole::Layer(layer, part);
        match self.spec.layers[layer as usize].feed_forward {
            FeedForwardSpec::Dense { intermediate_size, bias } => {
                let both = self.are_e4m3(&[role(Gate), role(Up), role(Down)])?;
                Ok(FeedForwardWeights::Dense {
                    gate_up: self.linear(&[role(Gate), role(Up)], both)?,
                    gate_up_bias: self.vectors_if(bias, &[role(GateBias), role(UpBias)])?,
                    down: self.linear(&[role(Down)], both)?,
                    down_bias: self.vectors_if(bias, &[role(DownBias)])?,
                    intermediate_size,
                })
            }
            FeedForwardSpec::Moe(spec) => {
                Ok(FeedForwardWeights::Moe(Box::new(self.experts(layer, spec)?)))
            }
        }
    }

    fn experts(&mut self, layer: u32, spec: MoeSpec) -> Result<ExpertWeights, CudaError> {
        use LayerWeight::*;
        let role = |part| WeightRole::Layer(layer, part);
        let each = |parts: &[fn(u32) -> LayerWeight]| -> Vec<WeightRole> {
            let of_expert = |e| parts.iter().map(move |part| role(part(e)));
            (0..spec.num_experts).flat_map(of_expert).collect()
        };
        let shared = match spec.shared_size {
            Some(intermediate_size) => Some(SharedWeights {
                gate_up: self.linear(&[role(SharedGate), role(SharedUp)], false)?,
                down: self.linear(&[role(SharedDown)], false)?,
                intermediate_size,
                score: self.vectors_if(spec.shared_score, &[role(SharedScore)])?,
            }),
            None => None,
        };
        Ok(ExpertWeights {
            spec,
            router: self.matrix(&[role(Router)])?,
            router_bias: self.vectors_if(spec.router.bias, &[role(RouterBias)])?,
            correction: self.vectors_if(spec.router.correction, &[role(RouterCorrection)])?,
            gate_up: self.experts_matrix(&each(&[ExpertGate, ExpertUp]))?,
            gate_up_bias: self.vectors_if(spec.bias, &each(&[ExpertGateBias, ExpertUpBias]))?,
            down: self.experts_matrix(&each(&[ExpertDown]))?,
            down_bias: self.vectors_if(spec.bias, &each(&[ExpertDownBias]))?,
            shared,
            own_norms: spec.own_norms.then(|| self.expert_norms(layer)).transpose()?,
        })
    }

    fn expert_norms(&mut self, layer: u32) -> Result<ExpertNorms, CudaError> {
        use LayerWeight::*;
        let role = |part| WeightRole::Layer(layer, part);
        let root = (self.spec.hidden_size as f32).sqrt();
        Ok(ExpertNorms {
            router: self.scaled_norm(role(RouterNorm), 1.0 / root)?,
            input: self.norm(role(ExpertNorm))?,
            shared: self.norm(role(SharedPostNorm))?,
            output: self.norm(role(ExpertPostNorm))?,
            scales: self.vector(role(RouterScale))?,
        })
    }

    /// The tensors one after the other, in the device's number format.
    fn matrix(&mut self, roles: &[WeightRole]) -> Result<DeviceSlice<Weight>, CudaError> {
        self.place(roles, Conversion::Matrix)
    }

    fn norm(&mut self, role: WeightRole) -> Result<DeviceSlice<f32>, CudaError> {
        self.scaled_norm(role, 1.0)
    }

    fn scaled_norm(
        &mut self,
        role: WeightRole,
        factor: f32,
    ) -> Result<DeviceSlice<f32>, CudaError> {
        let add = if self.spec.norm.plus_one { 1.0 } else { 0.0 };
        self.place(&[role], Conversion::Vector(Change { add, factor }))
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
        let conversion = Conversion::Vector(Change::NONE);
        wanted.then(|| self.place(roles, conversion)).transpose()
    }

    fn vector(&mut self, role: WeightRole) -> Result<DeviceSlice<f32>, CudaError> {
        self.place(&[role], Conversion::Vector(Change::NONE))
    }

    /// The tensors one after another: 4-bit if all of them can be, else the device type.
    fn experts_matrix(&mut self, roles: &[WeightRole]) -> Result<Matrix, CudaError> {
        let packed = if self.kept.four_bit_experts { self.packed(roles)? } else { None };
        match packed {
            Some(packed) => Ok(packed),
            None => Ok(Matrix::Plain(self.matrix(roles)?)),
        }
    }

    /// The tensors one after another as records, if all have one form.
    fn packed(&mut self, roles: &[WeightRole]) -> Result<Option<Matrix>, CudaError> {
        let views = self.views(roles)?;
        let Some(form) = views.first().and_then(FourBitForm::of) else { return Ok(None) };
        if views.iter().any(|view| FourBitForm::of(view) != Some(form)) {
            return Ok(None);
        }
        let bytes = |view: &TensorView| form.bytes(view.rows, view.cols);
        let records = self.layout.take::<u8>(views.iter().map(bytes).sum());
        let elements = views.iter().map(elements).sum();
        let mut start = 0;
        for view in views {
            let size = bytes(&view);
            self.jobs.push(CopyJob {
                destination: records.slice(start, size),
                scale: DeviceSlice::default(),
                conversion: Conversion::FourBit(form),
                view,
            });
            start += size;
        }
        Ok(Some(Matrix::FourBit { records, elements, form }))
    }

    /// The tensors one after another: 4-bit, or e4m3 if all of them can be and `may_be_e4m3`, else the device type.
    fn linear(&mut self, roles: &[WeightRole], may_be_e4m3: bool) -> Result<Matrix, CudaError> {
        if self.kept.four_bit
            && let Some(packed) = self.packed(roles)?
        {
            return Ok(packed);
        }
        if !(may_be_e4m3 && self.are_e4m3(roles)?) {
            return Ok(Matrix::Plain(self.matrix(roles)?));
        }
        let views = self.views(roles)?;
        let values = self.layout.take::<u8>(views.iter().map(elements).sum());
        let scale = self.layout.take::<f32>(views.iter().map(|view| u64::from(view.rows)).sum());
        let (mut start, mut row) = (0, 0);
        for view in views {
            let (size, rows) = (elements(&view), u64::from(view.rows));
            self.jobs.push(CopyJob {
                destination: values.slice(start, size),
                scale: scale.slice(row, rows),
                conversion: Conversion::E4m3,
                view,
            });
            start += size;
            row += rows;
        }
        Ok(Matrix::E4m3 { values, scale })
    }

    /// Whether these tensors can be one e4m3 matrix with a scale each row.
    fn are_e4m3(&self, roles: &[WeightRole]) -> Result<bool, CudaError> {
        let has_rows = |view: &TensorView| match &view.scale {
            Some(scale) => scale.block_cols >= view.cols,
            None => view.quantise,
        };
        // The kernel reads 16 bytes at once, and 16 rows.
        let is_whole =
            |view: &TensorView| view.cols.is_multiple_of(16) && view.rows.is_multiple_of(16);
        let views = self.views(roles)?;
        Ok(self.kept.e4m3 && views.iter().all(|view| has_rows(view) && is_whole(view)))
    }

    fn views(&self, roles: &[WeightRole]) -> Result<Vec<TensorView>, CudaError> {
        let find = |role: &WeightRole| {
            self.plan.tensors.get(role).cloned().ok_or_else(|| {
                CudaError::Unsupported(format!("the checkpoint has no tensor for {role:?}"))
            })
        };
        roles.iter().map(find).collect()
    }

    fn place<T>(
        &mut self,
        roles: &[WeightRole],
        conversion: Conversion,
    ) -> Result<DeviceSlice<T>, CudaError> {
        let views = self.views(roles)?;
        let all = self.layout.take(views.iter().map(elements).sum());
        let mut start = 0;
        for view in views {
            let size = elements(&view);
            let destination = all.slice(start, size).as_bytes();
            self.jobs.push(CopyJob {
                view,
                conversion,
                destination,
                scale: DeviceSlice::default(),
            });
            start += size;
        }
        Ok(all)
    }
}

fn elements(view: &TensorView) -> u64 {
    u64::from(view.rows) * u64::from(view.cols)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CudaConfig;
    use crate::supported::check_supported;

    /// Every reference model: all its tensors are placed once, none over another, merged ones in order.
    #[test]
    fn every_tensor_of_every_model_has_its_place() {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models");
        let (mut num_models, mut num_e4m3, mut num_four_bit) = (0, 0, 0);
        for entry in std::fs::read_dir(models).unwrap() {
            let mut checkpoint = ingle_model::open(&entry.unwrap().path()).unwrap();
            if check_supported(&checkpoint.spec, &CudaConfig::default()).is_err() {
                continue;
            }
            num_models += 1;
            let stored_so = checkpoint.plan.tensors.values().any(|view| view.scale.is_some());
            let is_four_bit = checkpoint.plan.tensors.values().any(|view| view.groups.is_some());
            for (quantised, keeps) in [(false, false), (true, false), (true, true)] {
                if quantised && !keeps && !is_four_bit {
                    checkpoint.plan.quantise_fp8().unwrap();
                }
                let kept = Kept { e4m3: keeps, four_bit: keeps, four_bit_experts: keeps };
                let (spec, plan) = (&checkpoint.spec, &checkpoint.plan);
                let layout =
                    WeightLayout::new(LayoutBuilder::measuring(), spec, plan, kept).unwrap();
                check_places(&layout, spec, plan);
                assert!(keeps || !layout.weights.have_e4m3());
                let (fp8, _) = layout.fp8_tensors();
                assert_eq!(fp8 > 0, quantised && !is_four_bit || stored_so);
                let (four_bit, widened) = layout.four_bit_tensors();
                assert_eq!(four_bit > 0, is_four_bit);
                // Act order and narrow groups have no kernel.
                assert!(keeps || widened == four_bit, "{four_bit} {widened}");
                num_four_bit += u32::from(is_four_bit && keeps && widened == 0);
                let (fp8, widened) = layout.fp8_tensors();
                assert_eq!(fp8 > widened, layout.weights.have_e4m3());
                num_e4m3 += u32::from(layout.weights.have_e4m3() && !stored_so);
            }
        }
        assert!(num_models >= 45, "{num_models} models that a card can serve");
        assert!(num_e4m3 >= 12, "{num_e4m3} models quantised");
        assert!(num_four_bit >= 4, "{num_four_bit} models keep all 4-bit tensors");
    }

    fn check_places(layout: &WeightLayout, spec: &ModelSpec, plan: &CopyPlan) {
        let again = usize::from(spec.logit_scale != 1.0);
        assert_eq!(layout.jobs.len(), plan.tensors.len() + again);
        let mut spans = Vec::new();
        for job in &layout.jobs {
            let size = match job.conversion {
                Conversion::Matrix => elements(&job.view) * 2,
                Conversion::E4m3 => elements(&job.view),
                Conversion::Vector(_) => elements(&job.view) * 4,
                Conversion::FourBit(form) => form.bytes(job.view.rows, job.view.cols),
            };
            let start = job.destination.address();
            assert_eq!(job.destination.len(), size, "{:?}", job.view);
            spans.push((start, start + size));
            if job.conversion == Conversion::E4m3 {
                assert_eq!(job.scale.len(), u64::from(job.view.rows), "{:?}", job.view);
                let scales = job.scale.as_bytes();
                spans.push((scales.address(), scales.address() + scales.len()));
            }
        }
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        assert!(spans[0].0 >= 256 && spans.last().unwrap().1 <= layout.bytes);
        let mixers = layout.weights.layers.iter().map(|layer| &layer.mixer);
        let attention = (0..).zip(mixers).find_map(|(index, mixer)| match mixer {
            Mixer::Attention(weights) => Some((index, weights)),
            Mixer::DeltaNet(_) => None,
        });
        let (index, AttentionWeights { qkv, .. }) = attention.unwrap();
        let gates = 1 + u32::from(spec.attention.output_gate);
        let heads = spec.heads(&spec.layers[index as usize]);
        let q_rows = gates * spec.num_attention_heads * heads.head_dim;
        let q_elements = u64::from(q_rows) * u64::from(spec.hidden_size);
        let q = match qkv {
            Matrix::Plain(_) => q_elements * 2,
            Matrix::E4m3 { .. } => q_elements,
            Matrix::FourBit { form, .. } => form.bytes(q_rows, spec.hidden_size),
        };
        let key = &plan.tensors[&WeightRole::Layer(index, LayerWeight::Key)];
        let job = layout.jobs.iter().find(|job| job.view == *key).unwrap();
        assert_eq!(job.destination.address(), qkv.as_bytes().address() + q);
    }
}
