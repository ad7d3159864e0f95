//! Kernels built ahead for machines without NVRTC: dimensions are read at run time. The wheel's build
//! writes them (no GPU needed), loading reads them.

use std::collections::BTreeMap;
use std::path::Path;

use crate::CudaError;
use crate::compile::Compiler;
use crate::dims::Dims;
use crate::kernels::{AttentionLaunch, HEADER, KernelSettings, Program, runtime_programs};
use crate::sys::LibraryPaths;

/// Writes every kernel for every target to `folder`; returns how many files. Blocking, minutes.
///
/// # Errors
/// If NVRTC is missing or refuses a kernel, or a file cannot be written.
pub fn write_prebuilt_kernels(libraries: &LibraryPaths, folder: &Path) -> Result<usize, CudaError> {
    let compiler = Compiler::open(libraries)?;
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut count = 0;
    for (target, compute_capability) in TARGETS {
        let mut units = BTreeMap::new();
        for f16_device in [false, true] {
            for head_dim in HEAD_DIMS {
                let attention = AttentionLaunch::on(compute_capability, 1, head_dim);
                let dims = Dims::default();
                let settings = KernelSettings { dims, f16_device, head_dim, attention };
                for program in runtime_programs() {
                    units.insert(program.runtime_name(&settings), program.runtime_unit(&settings)?);
                }
            }
        }
        let (names, units): (Vec<_>, Vec<_>) = units.into_iter().unzip();
        let (codes, _) = compiler.build(&units, HEADER, target, None, threads)?;
        for (name, code) in names.iter().zip(&codes) {
            let path = folder.join(file_name(name, target));
            std::fs::write(&path, code)
                .map_err(|source| CudaError::Io { what: path.display().to_string(), source })?;
            count += 1;
        }
    }
    Ok(count)
}

/// Reads the kernels of `programs` from `folder`, in their order.
///
/// # Errors
/// The name of the first file that is missing.
pub(crate) fn read_prebuilt(
    folder: &Path,
    compute_capability: (u32, u32),
    programs: &[Program],
    settings: &KernelSettings,
) -> Result<Vec<Vec<u8>>, CudaError> {
    let target = target_for(compute_capability);
    programs
        .iter()
        .map(|program| {
            let path = folder.join(file_name(&program.runtime_name(settings), target));
            std::fs::read(&path)
                .map_err(|source| CudaError::Io { what: path.display().to_string(), source })
        })
        .collect()
}

fn file_name(name: &str, target: &str) -> String {
    let suffix = if target.starts_with("compute_") { "ptx" } else { "cubin" };
    format!("{name}.{target}.{suffix}")
}

/// The build that runs on a card: its own, else that of the same generation, else the PTX that the
/// driver compiles.
fn target_for(compute_capability: (u32, u32)) -> &'static str {
    match compute_capability {
        (9, 0) => "sm_90a",
        (8, 9) => "sm_89",
        (8, 6 | 7) => "sm_86",
        (8, _) => "sm_80",
        _ => "compute_80",
    }
}

/// Targets and the capability that their launch sizes are chosen for.
const TARGETS: [(&str, (u32, u32)); 5] = [
    ("sm_80", (8, 0)),
    ("sm_86", (8, 6)),
    ("sm_89", (8, 9)),
    ("sm_90a", (9, 0)),
    ("compute_80", (8, 0)),
];
/// Widths of a head that attention is built for.
const HEAD_DIMS: [u32; 6] = [16, 32, 64, 96, 128, 256];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_finds_a_target_that_is_built() {
        for capability in [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)] {
            let target = target_for(capability);
            assert!(TARGETS.iter().any(|(built, _)| *built == target), "{capability:?} {target}");
        }
        assert_eq!(file_name("pool-bf16", "sm_80"), "pool-bf16.sm_80.cubin");
        assert_eq!(file_name("pool-bf16", "compute_80"), "pool-bf16.compute_80.ptx");
    }

    /// The PTX is built with the launch sizes of 8.0; a newer card must choose the same.
    #[test]
    fn ptx_and_launch_agree_on_stages() {
        for head_dim in HEAD_DIMS {
            let built = AttentionLaunch::on((8, 0), 1, head_dim);
            assert_eq!(AttentionLaunch::on((10, 0), 1, head_dim).stages, built.stages);
            assert_eq!(AttentionLaunch::on((12, 0), 1, head_dim).kv_tile, built.kv_tile);
        }
    }
}
