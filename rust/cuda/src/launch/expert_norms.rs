//! Launches of expert_norms.cu.

use ingle_model::MoeSpec;

use super::{ExpertPlaces, Launcher};
use crate::CudaError;
use crate::builds::expert_norms;
use crate::device_slice::{Act, DeviceSlice};
use crate::module::{Launch, args};
use crate::registry::Entry;

/// Of expert_inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertInputs {
    /// `[rows, hidden_size]`
    pub(crate) residual: DeviceSlice<f32>,
    /// `[hidden_size]` each
    pub(crate) weights: [DeviceSlice<f32>; 3],
    /// `[rows, hidden_size]` each
    pub(crate) outs: [DeviceSlice<Act>; 3],
    pub(crate) eps: f32,
}

/// Of expert_join.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertJoin {
    /// What the shared network gave, `[rows, hidden_size]`
    pub(crate) shared: DeviceSlice<f32>,
    /// What the experts gave, `[entries, hidden_size]`
    pub(crate) expert_out: DeviceSlice<Act>,
    pub(crate) places: ExpertPlaces,
    /// `[hidden_size]` each
    pub(crate) shared_norm: DeviceSlice<f32>,
    pub(crate) expert_norm: DeviceSlice<f32>,
    pub(crate) post_norm: DeviceSlice<f32>,
    /// `[rows, hidden_size]`
    pub(crate) residual: DeviceSlice<f32>,
    /// `[1]`
    pub(crate) factor: Option<DeviceSlice<f32>>,
    pub(crate) eps: f32,
}

impl Launcher<'_> {
    /// Queues three norms of `rows` rows, `block` threads each.
    pub(crate) fn expert_inputs(
        &self,
        (rows, block): (u32, u32),
        spec: &MoeSpec,
        a: &ExpertInputs,
    ) -> Result<(), CudaError> {
        holds!(a.residual, self.hidden(rows));
        a.weights.iter().for_each(|weight| holds!(weight, self.hidden(1)));
        a.outs.iter().for_each(|out| holds!(out, self.hidden(rows)));
        let variant = expert_norms(spec);
        let dims = variant.dims(*self.dims);
        let kernel = self.kernels.build(Entry::ExpertInputs, variant)?;
        let ([w0, w1, w2], [o0, o1, o2]) = (a.weights, a.outs);
        // SAFETY: these are the parameters of expert_inputs in its order; the slices were checked above.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, block),
                args![&dims, a.residual, w0, w1, w2, o0, o1, o2, a.eps],
            )
        }
    }

    /// Queues the sum of `rows` rows' experts and shared network, their norms, and the sum with the residual stream.
    pub(crate) fn expert_join(
        &self,
        (rows, block): (u32, u32),
        spec: &MoeSpec,
        a: &ExpertJoin,
    ) -> Result<(), CudaError> {
        let entries = rows * spec.experts_per_token;
        holds!(a.shared, self.hidden(rows));
        holds!(a.expert_out, self.hidden(entries));
        holds!(a.places.place, u64::from(entries));
        holds!(a.places.weights, u64::from(entries));
        [a.shared_norm, a.expert_norm, a.post_norm]
            .iter()
            .for_each(|norm| holds!(norm, self.hidden(1)));
        holds!(a.residual, self.hidden(rows));
        if let Some(factor) = a.factor {
            holds!(factor, 1);
        }
        let variant = expert_norms(spec);
        let dims = variant.dims(*self.dims);
        let kernel = self.kernels.build(Entry::ExpertJoin, variant)?;
        // SAFETY: these are the parameters of expert_join in its order; the slices were checked above, and moe_sort
        // wrote the places.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, block),
                args![
                    &dims,
                    a.shared,
                    a.expert_out,
                    a.places.place,
                    a.places.weights,
                    a.shared_norm,
                    a.expert_norm,
                    a.post_norm,
                    a.residual,
                    a.factor,
                    a.eps
                ],
            )
        }
    }
}
