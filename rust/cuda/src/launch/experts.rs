//! Launches of moe.cu.

use ingle_model::MoeSpec;

use super::Launcher;
use crate::CudaError;
use crate::contract::{Dims, MOE_ROUTE_TOKENS, MOE_TILE};
use crate::device_slice::{Act, DeviceSlice};
use crate::matrix::Matrix;
use crate::module::{Kernel, Launch, args};
use crate::registry::Entry;
use crate::variant::{ExpertKind, Variant};

/// Which entries (a token and one of its experts) each expert has, and where; written by moe_sort.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertPlaces {
    /// `[rows, experts_per_token]` each, by token
    pub(crate) ids: DeviceSlice<u32>,
    pub(crate) weights: DeviceSlice<f32>,
    /// `[num_experts + 1]`
    pub(crate) offsets: DeviceSlice<u32>,
    /// `[rows * experts_per_token]` each
    pub(crate) sorted: DeviceSlice<u32>,
    pub(crate) place: DeviceSlice<u32>,
}

/// Of moe_route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routing {
    /// `[rows, num_experts]`
    pub(crate) logits: DeviceSlice<f32>,
    /// `[num_experts]` each
    pub(crate) bias: Option<DeviceSlice<f32>>,
    /// Added to scores for the choice; of experts with norms of their own, what chosen weights are multiplied by.
    pub(crate) correction: Option<DeviceSlice<f32>>,
}

/// Of moe_gemm: `out[i] = x[r] * w[e]^T + bias[e]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeGemm {
    pub(crate) n: u32,
    pub(crate) k: u32,
    /// `[*, k]`
    pub(crate) x: DeviceSlice<Act>,
    /// `[num_experts, n, k]`
    pub(crate) w: Matrix,
    /// `[num_experts, n]`, for the builds with biases
    pub(crate) bias: Option<DeviceSlice<f32>>,
    /// `[entries, n]`
    pub(crate) out: DeviceSlice<Act>,
    /// x has a row for each token, not for each sorted entry.
    pub(crate) gather: bool,
}

impl MoeGemm {
    /// Asserts that the slices hold a product of `entries` entries.
    fn check(&self, entries: u32, spec: &MoeSpec) {
        let (n, k) = (u64::from(self.n), u64::from(self.k));
        let rows = if self.gather { entries / spec.experts_per_token } else { entries };
        holds!(self.x, u64::from(rows) * k);
        holds!(self.w, u64::from(spec.num_experts) * n * k);
        holds!(self.out, u64::from(entries) * n);
        if let Some(bias) = self.bias {
            holds!(bias, u64::from(spec.num_experts) * n);
        }
    }
}

impl Launcher<'_> {
    /// Queues the choice of experts for `rows` tokens, and their sorting.
    pub(crate) fn route(
        &self,
        rows: u32,
        spec: &MoeSpec,
        from: &Routing,
        to: &ExpertPlaces,
    ) -> Result<(), CudaError> {
        let (experts, entries) = (spec.num_experts, rows * spec.experts_per_token);
        holds!(from.logits, u64::from(rows) * u64::from(experts));
        for vector in [from.bias, from.correction].into_iter().flatten() {
            holds!(vector, u64::from(experts));
        }
        holds!(to.ids, u64::from(entries));
        holds!(to.weights, u64::from(entries));
        holds!(to.offsets, u64::from(experts + 1));
        holds!(to.sorted, u64::from(entries));
        holds!(to.place, u64::from(entries));
        let variant = self.any_product(spec);
        let dims = variant.dims(*self.dims);
        let route = self.kernels.build(Entry::MoeRoute, variant)?;
        let sort = self.kernels.build(Entry::MoeSort, variant)?;
        let normalise = u32::from(spec.router.normalise_top_k);
        // SAFETY: these are the parameters of moe_route and moe_sort in their order; the slices were checked above
        // against the numbers of experts that the kernels were built for.
        unsafe {
            route.launch(
                self.stream,
                Launch::linear(rows.div_ceil(MOE_ROUTE_TOKENS), 32 * MOE_ROUTE_TOKENS),
                args![
                    &dims,
                    from.logits,
                    from.bias,
                    from.correction,
                    to.ids,
                    to.weights,
                    normalise,
                    spec.router.scale,
                    rows
                ],
            )?;
            sort.launch(
                self.stream,
                Launch::linear(experts, 256),
                args![&dims, to.ids, entries, to.offsets, to.sorted, to.place],
            )
        }
    }

    /// Queues what the experts of `rows` tokens get where their weights scale it: `out` `[entries, hidden_size]` in the
    /// order of sorted entries, whose weights become 1.
    pub(crate) fn moe_scale_rows(
        &self,
        rows: u32,
        spec: &MoeSpec,
        x: DeviceSlice<Act>,
        places: &ExpertPlaces,
        out: DeviceSlice<Act>,
    ) -> Result<(), CudaError> {
        let entries = rows * spec.experts_per_token;
        holds!(x, self.hidden(rows));
        holds!(out, self.hidden(entries));
        holds!(places.sorted, u64::from(entries));
        holds!(places.weights, u64::from(entries));
        let variant = self.any_product(spec);
        let dims = variant.dims(*self.dims);
        let kernel = self.kernels.build(Entry::MoeScaleRows, variant)?;
        // SAFETY: these are the parameters of moe_scale_rows in its order; the slices were checked above, and moe_sort
        // wrote the places.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(entries, 256),
                args![&dims, x, places.sorted, places.weights, out],
            )
        }
    }

    /// Queues one product of all experts with their entries, of which there are `entries`; `a.w` is a plain matrix.
    pub(crate) fn moe_gemm(
        &self,
        entries: u32,
        spec: &MoeSpec,
        places: &ExpertPlaces,
        a: &MoeGemm,
    ) -> Result<(), CudaError> {
        let variant = product(spec, a.n, a.k);
        let dims = variant.dims(*self.dims);
        let kernel = self.kernels.build(Entry::MoeGemm, variant)?;
        let tiles = entries.div_ceil(MOE_TILE) + spec.num_experts;
        let launch = Launch::plane(a.n.div_ceil(MOE_TILE), tiles, kernel.max_block());
        self.multiply_experts((kernel, launch), (entries, spec), &dims, places, a)
    }

    /// Queues moe_gemm or moe_four_bit, whose parameters are the same. `dims` are those of the kernel's build, which
    /// is of this `a.n` and `a.k`.
    pub(super) fn multiply_experts(
        &self,
        (kernel, launch): (&Kernel, Launch),
        (entries, spec): (u32, &MoeSpec),
        dims: &Dims,
        places: &ExpertPlaces,
        a: &MoeGemm,
    ) -> Result<(), CudaError> {
        a.check(entries, spec);
        holds!(places.offsets, u64::from(spec.num_experts + 1));
        holds!(places.sorted, u64::from(entries));
        let (w, gather) = (a.w.as_bytes(), u32::from(a.gather));
        let arguments = args![dims, a.x, w, a.bias, a.out, places.offsets, places.sorted, gather];
        // SAFETY: these are the parameters of both kernels in their order; the slices were checked above against the
        // n and k that the kernel was built for, and moe_sort wrote the places.
        unsafe { kernel.launch(self.stream, launch, arguments) }
    }

    /// Queues the weighted sum of each token's experts into the residual.
    pub(crate) fn moe_combine(
        &self,
        rows: u32,
        spec: &MoeSpec,
        expert_out: DeviceSlice<Act>,
        places: &ExpertPlaces,
        residual: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        holds!(expert_out, self.hidden(rows * spec.experts_per_token));
        holds!(residual, self.hidden(rows));
        let variant = self.any_product(spec);
        let dims = variant.dims(*self.dims);
        let kernel = self.kernels.build(Entry::MoeCombine, variant)?;
        // SAFETY: these are the parameters of moe_combine in its order; the slices were checked above, and moe_sort
        // wrote the places.
        unsafe {
            kernel.launch(
                self.stream,
                Launch::linear(rows, 256),
                args![&dims, expert_out, places.place, places.weights, residual],
            )
        }
    }

    /// The build for entries that do not depend on a product: every build has them alike.
    fn any_product(&self, spec: &MoeSpec) -> Variant {
        product(spec, self.dims.hidden_size, spec.intermediate_size)
    }
}

fn product(spec: &MoeSpec, gemm_n: u32, gemm_k: u32) -> Variant {
    let MoeSpec { num_experts, experts_per_token, .. } = *spec;
    let kind = ExpertKind::of(spec);
    Variant::Experts { num_experts, experts_per_token, gemm_n, gemm_k, kind }
}
