//! The values of `--device`. Plain data.

use std::path::PathBuf;

use crate::error::EngineError;

/// What `--device` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The GPU if there is one that we can use, else the CPU.
    Auto,
    Cpu,
    Cuda(u32),
    /// A profile file, or the default profile.
    Sim(Option<PathBuf>),
}

impl Device {
    /// Reads the option.
    ///
    /// # Errors
    /// `EngineError::Model` for any other word.
    pub(crate) fn parse(text: &str) -> Result<Self, EngineError> {
        match text.split_once(':') {
            None => match text {
                "auto" => Ok(Self::Auto),
                "cpu" => Ok(Self::Cpu),
                "cuda" => Ok(Self::Cuda(0)),
                "sim" => Ok(Self::Sim(None)),
                _ => Err(unknown(text)),
            },
            Some(("cuda", ordinal)) => ordinal.parse().map(Self::Cuda).map_err(|_| unknown(text)),
            Some(("sim", file)) if !file.is_empty() => Ok(Self::Sim(Some(PathBuf::from(file)))),
            Some(_) => Err(unknown(text)),
        }
    }
}

/// Whether a GPU may be used: for a value of `--device`, or the name of a device that was built.
#[must_use]
pub fn may_use_gpu(device: &str) -> bool {
    matches!(device.split([':', ' ']).next(), Some("auto" | "cuda"))
}

fn unknown(text: &str) -> EngineError {
    EngineError::Model(format!(
        "device: must be auto, cpu, cuda, cuda:N, sim or sim:FILE, not {text:?}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_gpu_is_known_by_its_setting_and_by_its_name() {
        let all = ["auto", "cuda", "cuda:3", "cuda:0 (NVIDIA H200)", "cpu", "sim", "sim:cuda", ""];
        let found: Vec<_> = all.into_iter().filter(|device| may_use_gpu(device)).collect();
        assert_eq!(found, all[..4]);
    }

    #[test]
    fn test_device_names() {
        assert_eq!(Device::parse("auto").unwrap(), Device::Auto);
        assert_eq!(Device::parse("cuda:3").unwrap(), Device::Cuda(3));
        assert_eq!(Device::parse("sim:a:b").unwrap(), Device::Sim(Some("a:b".into())));
        for wrong in ["", "gpu", "cpu:0", "cuda:", "cuda:-1", "sim:"] {
            let error = Device::parse(wrong).unwrap_err().to_string();
            assert!(error.starts_with("device:"), "{error}");
        }
    }
}
