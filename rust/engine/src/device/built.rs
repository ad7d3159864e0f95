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
    /// Of a device that counts something of its own, or works on after its load.
    pub(crate) own: Option<Arc<dyn DeviceOwn>>,
}

/// What one device has and the others have not.
pub(crate) trait DeviceOwn: Debug + Send + Sync {
    /// Appends Prometheus text; every sample carries `labels`. The device's threads write what a scrape reads; no lock
    /// is taken.
    fn render(&self, labels: &str, out: &mut String);

    /// Blocks until what the device began at load is done. From then on it makes no system call but to run steps.
    fn seal(&self);
}
