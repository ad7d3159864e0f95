//! security/policy/process.toml: what of its surroundings the worker keeps. Pure.

use std::path::PathBuf;

use serde::Deserialize;

use crate::error::HardeningError;
use crate::landlock::Places;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Surroundings {
    /// Names of variables; `*` ends a prefix.
    pub(crate) environment: Vec<String>,
    files: Files,
    descriptors: Descriptors,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Files {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    gpu: GpuFiles,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuFiles {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Descriptors {
    any: Vec<String>,
    gpu: Vec<String>,
}

impl Surroundings {
    /// The file as it was when this was built.
    ///
    /// # Errors
    /// `HardeningError::Policy` if it is wrong.
    pub(crate) fn read() -> Result<Self, HardeningError> {
        toml::from_str(TEXT).map_err(|error| HardeningError::Policy {
            name: "process.toml",
            reason: error.to_string(),
        })
    }

    /// What may be opened before the tight filter.
    pub(crate) fn places(&self, has_gpu: bool) -> Places {
        let mut places = Places {
            read: self.files.read.clone(),
            write: self.files.write.clone(),
            connect: Vec::new(),
        };
        if has_gpu {
            places.read.extend(self.files.gpu.read.iter().cloned());
            places.write.extend(self.files.gpu.write.iter().cloned());
        }
        places
    }

    /// Whether a descriptor may be open when the tight filter goes on; `target` is its link in /proc.
    pub(crate) fn allows_descriptor(&self, target: &str, has_gpu: bool) -> bool {
        let gpu = if has_gpu { self.descriptors.gpu.as_slice() } else { &[] };
        self.descriptors.any.iter().chain(gpu).any(|prefix| target.starts_with(prefix))
    }
}

const TEXT: &str = include_str!("../../../security/policy/process.toml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_gpu_places_and_descriptors_are_for_gpus_alone() {
        let file = Surroundings::read().unwrap();
        let gpu = PathBuf::from("/dev/nvidiactl");
        assert!(file.places(true).write.contains(&gpu) && !file.places(false).write.contains(&gpu));
        assert!(file.allows_descriptor("/dev/nvidia0", true));
        assert!(!file.allows_descriptor("/dev/nvidia0", false));
        assert!(!file.allows_descriptor("/srv/model/weights.bin", true));
        assert!(file.allows_descriptor("socket:[17]", false));
    }
}
