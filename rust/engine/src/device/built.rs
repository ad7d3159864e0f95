//! The result of building a device: the executor and what the engine reports about it. Plain data.

use std::fmt::Debug;
use std::sync::Arc;

use ingle_core::Executor;

use crate::sizes::Sizes;

/// An executor and how it came about.
pub(crate) struct Built {
    pub(crate) executor: Box<dyn Executor>,
    pub(crate) sizes: Sizes,
    /// For people: `cpu`, `sim:llama-3.1-8b-bf16-h200`.
    pub(crate) name: String,
    /// Name in the style `weights_bytes`, and bytes; for the memory table.
    pub(crate) memory: Vec<(String, u64)>,
    /// Of a device that counts something of its own.
    pub(crate) metrics: Option<Arc<dyn DeviceMetrics>>,
}

/// What a device counts beside what all have. Its own threads write, a scrape reads; no lock is taken.
pub(crate) trait DeviceMetrics: Debug + Send + Sync {
    /// Appends Prometheus text; every sample carries `labels`.
    fn render(&self, labels: &str, out: &mut String);
}
