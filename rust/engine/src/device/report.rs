//! What each device needs on this machine and what is missing, for `ingle doctor`. Any thread; reads
//! only.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::device::cuda_report;
use crate::device::libraries::CudaLibraries;

/// Where an engine would look: the options of the same names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Places {
    pub(super) cuda_libraries: CudaLibraries,
    pub(super) prebuilt_kernels: Option<PathBuf>,
}

/// By name of the device. Blocking, up to a second a GPU.
pub(crate) fn devices(places: &Places) -> Value {
    json!({
        "cpu": { "usable": true },
        "sim": { "usable": true },
        "cuda": cuda_report::of_machine(&places.cuda_libraries, places.prebuilt_kernels.as_deref()),
    })
}
