//! The largest sizes that a model may have, so that products do not overflow and loops end. The
//! largest published models are far smaller.

pub(crate) const LAYERS: u32 = 1024;
pub(crate) const WIDTH: u32 = 1 << 20;
pub(crate) const HEADS: u32 = 4096;
pub(crate) const HEAD_DIM: u32 = 1024;
pub(crate) const LATENT: u32 = 8192;
pub(crate) const VOCABULARY: u32 = 1 << 24;
pub(crate) const POSITIONS: u32 = 1 << 28;
pub(crate) const EXPERTS: u32 = 1024;
