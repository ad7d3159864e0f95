//! What a device is built from, and the result: the executor and what the engine reports about it.
//! Plain data.

use std::fmt::Debug;
use std::sync::Arc;

use ingle_core::Executor;
use ingle_model::{Checkpoint, Phase};

use crate::device::late_text::LateText;
use crate::options::EngineOptions;
use crate::sizes::Sizes;

/// What executors are built from.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) options: &'a EngineOptions,
    /// Loads meanwhile.
    pub(super) text: &'a LateText,
}

/// An executor and how it came about.
pub(crate) struct Built {
    pub(crate) executor: Box<dyn Executor>,
    pub(crate) sizes: Sizes,
    /// For people: `cpu`, `sim:llama-3.1-8b-bf16-h200`.
    pub(crate) name: String,
    /// Name in the style `weights_bytes`, and bytes; for the memory table.
    pub(crate) memory: Vec<(String, u64)>,
    /// Files that stay open after the load, by their real paths.
    pub(crate) open_files: Vec<String>,
    /// Of a device that counts something of its own, or works on after its load.
    pub(crate) own: Option<Arc<dyn DeviceOwn>>,
    /// What its load consisted of, where the device tells.
    pub(crate) phases: Vec<Phase>,
}

/// What one device has and the others have not.
pub(crate) trait DeviceOwn: Debug + Send + Sync {
    /// What the device counts, always the same families. The device's threads write what a scrape reads; no lock
    /// is taken.
    fn counts(&self) -> Vec<DeviceCount>;

    /// Blocks until what the device began at load is done. From then on it makes no system call but to run steps, if
    /// this is true.
    fn seal(&self) -> bool;
}

/// A family of Prometheus samples that one label tells apart.
#[derive(Clone, Debug)]
pub(crate) struct DeviceCount {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    /// `gauge` or `counter`.
    pub(crate) kind: &'static str,
    pub(crate) label: &'static str,
    /// Value of the label, and the sample.
    pub(crate) values: Vec<(&'static str, u64)>,
}
