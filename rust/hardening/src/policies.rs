//! The files of security/policy, as they were when this was built.

use crate::error::HardeningError;
use crate::policy::Policy;

/// A file of the repository's folder security/policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyFile {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

impl PolicyFile {
    /// Its rules.
    ///
    /// # Errors
    /// `HardeningError::Policy` if the file is wrong.
    pub(crate) fn policy(&self) -> Result<Policy, HardeningError> {
        Policy::parse(self.name, self.text)
    }
}

/// What one driver needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuFiles {
    /// To run steps.
    pub(crate) ready: PolicyFile,
    /// Beyond that, to record graphs.
    pub(crate) recording: PolicyFile,
    /// Beyond `ready`, to give device memory back and take it again.
    pub(crate) sleep: PolicyFile,
}

macro_rules! file {
    ($name:literal) => {
        PolicyFile { name: $name, text: include_str!(concat!("../../../security/policy/", $name)) }
    };
}

/// From the start.
pub(crate) const BASE: PolicyFile = file!("base.toml");
/// Once the worker is ready.
pub(crate) const SERVE: PolicyFile = file!("serve.toml");
/// The process that reads the key file and removes the Unix socket.
pub(crate) const KEEPER: PolicyFile = file!("keeper.toml");
/// The process that sends spans, once it has its threads and modules.
pub(crate) const EXPORTER: PolicyFile = file!("exporter.toml");
/// What `security check` tries.
pub(crate) const PROBES: PolicyFile = file!("probes.toml");
/// What a GPU needs beyond `SERVE`, by the driver's major version.
pub(crate) const GPU_DRIVERS: &[(u32, GpuFiles)] = &[(
    580,
    GpuFiles {
        ready: file!("cuda-580.toml"),
        recording: file!("cuda-580-recording.toml"),
        sleep: file!("cuda-580-sleep.toml"),
    },
)];
/// The same for a driver whose calls nobody has listed.
pub(crate) const GPU_UNKNOWN: PolicyFile = file!("cuda-unknown.toml");
