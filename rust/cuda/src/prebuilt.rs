//! Kernels built ahead for machines without NVRTC: dimensions are read at run time. The wheel's build
//! writes them (no GPU needed), loading reads them.

use std::collections::BTreeMap;
use std::path::Path;

use crate::CudaError;
use crate::cache::key;
use crate::compile::{Compiler, Unit};
use crate::dims::Dims;
use crate::kernels::{AttentionLaunch, HEADER, KernelSettings, Program, runtime_programs};
use crate::prompt_attention::PROMPT_HEAD_DIMS;
use crate::sys::LibraryPaths;

/// Writes every kernel for every target to `folder`; returns how many files. Blocking, minutes.
///
/// # Errors
/// If NVRTC is missing or refuses a kernel, or a file cannot be written.
pub fn write_prebuilt_kernels(libraries: &LibraryPaths, folder: &Path) -> Result<usize, CudaError> {
    let compiler = Compiler::open(libraries)?;
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut count = 0;
    for (target, _) in TARGETS {
        let builds = builds(target);
        let units = builds.values().map(Build::unit).collect::<Result<Vec<_>, _>>()?;
        let (codes, _) = compiler.build(&units, HEADER, target, None, threads)?;
        for ((name, unit), code) in builds.keys().zip(&units).zip(&codes) {
            write_kernel(&folder.join(name), unit, target, code)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Reads the kernels of `programs` from `folder`, in their order.
///
/// # Errors
/// The first file that is missing, is damaged or was made from other sources than this build's.
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
            let build = Build::new(*program, settings.f16_device, settings.head_dim, target);
            read_kernel(&folder.join(build.file_name()), &build.unit()?, target)
        })
        .collect()
}

/// One file of the folder: a program for a target, all that decides its code and nothing else.
#[derive(Debug)]
struct Build {
    program: Program,
    settings: KernelSettings,
    target: &'static str,
}

impl Build {
    fn new(program: Program, f16_device: bool, head_dim: u32, target: &'static str) -> Self {
        // Programs that do not depend on a head's width are built once.
        let head_dim = if program.has_head_dim() { head_dim } else { HEAD_DIMS[0] };
        let capability = TARGETS.iter().find(|(name, _)| *name == target).map_or((8, 0), |t| t.1);
        let attention = AttentionLaunch::on(capability, 1, head_dim);
        let settings = KernelSettings {
            dims: Dims::default(),
            f16_device,
            head_dim,
            causal: true,
            attention,
            prompt_attention: None,
        };
        Self { program, settings, target }
    }

    fn unit(&self) -> Result<Unit, CudaError> {
        self.program.runtime_unit(&self.settings)
    }

    fn file_name(&self) -> String {
        let suffix = if self.target.starts_with("compute_") { "ptx" } else { "cubin" };
        format!("{}.{}.{suffix}", self.program.runtime_name(&self.settings), self.target)
    }
}

/// Every file of a target, by name.
fn builds(target: &'static str) -> BTreeMap<String, Build> {
    let mut builds = BTreeMap::new();
    for f16_device in [false, true] {
        for head_dim in HEAD_DIMS {
            let prompt = target == "sm_90a" && PROMPT_HEAD_DIMS.contains(&head_dim);
            let prompt = prompt.then_some(Program::AttentionPrefill);
            for program in runtime_programs().into_iter().chain(prompt) {
                let build = Build::new(program, f16_device, head_dim, target);
                builds.insert(build.file_name(), build);
            }
        }
    }
    builds
}

/// A file is this hash, then the code.
fn write_kernel(path: &Path, unit: &Unit, target: &str, code: &[u8]) -> Result<(), CudaError> {
    let mut bytes = hash(unit, target, code).to_vec();
    bytes.extend_from_slice(code);
    std::fs::write(path, bytes).map_err(|source| io(path, source))
}

fn read_kernel(path: &Path, unit: &Unit, target: &str) -> Result<Vec<u8>, CudaError> {
    let mut bytes = std::fs::read(path).map_err(|source| io(path, source))?;
    match bytes.split_at_checked(blake3::OUT_LEN) {
        Some((stored, code)) if stored == hash(unit, target, code) => {
            bytes.drain(..blake3::OUT_LEN);
            Ok(bytes)
        }
        _ => Err(CudaError::Unsupported(format!(
            "kernel {}: damaged, or built from other sources than this engine; \
             install the package anew",
            path.display()
        ))),
    }
}

/// Over what the code was made from and the code itself: a launch is right only for its own source.
fn hash(unit: &Unit, target: &str, code: &[u8]) -> [u8; blake3::OUT_LEN] {
    let options = unit.options.join("\n");
    let parts = [unit.source.as_bytes(), HEADER.as_bytes(), options.as_bytes(), target.as_bytes()];
    let made_from = key("prebuilt", &parts);
    *blake3::Hasher::new().update(made_from.as_bytes()).update(code).finalize().as_bytes()
}

fn io(path: &Path, source: std::io::Error) -> CudaError {
    CudaError::Io { what: path.display().to_string(), source }
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
    use crate::prompt_attention::PromptLaunch;

    #[test]
    fn every_card_finds_a_target_that_is_built() {
        for capability in [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)] {
            let target = target_for(capability);
            assert!(TARGETS.iter().any(|(built, _)| *built == target), "{capability:?} {target}");
        }
        let name = |target| Build::new(Program::Pool, false, 64, target).file_name();
        assert_eq!(name("sm_80"), "pool-bf16.sm_80.cubin");
        assert_eq!(name("compute_80"), "pool-bf16.compute_80.ptx");
    }

    /// Whatever a model needs on a card is in the set that is built for the card's target.
    #[test]
    fn the_set_is_complete_for_every_model_and_target() {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models");
        let mut num_models = 0;
        for entry in std::fs::read_dir(models).unwrap() {
            let mut spec = ingle_model::open(&entry.unwrap().path()).unwrap().spec;
            num_models += 1;
            for (head_dim, causal) in HEAD_DIMS.into_iter().flat_map(|d| [(d, true), (d, false)]) {
                spec.head_dim = head_dim;
                spec.attention.causal = causal;
                for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)] {
                    let target = target_for(capability);
                    let built = builds(target);
                    let prompt = PromptLaunch::on(capability, 132, head_dim, 64).is_some();
                    for program in Program::of(&spec, capability, prompt) {
                        for f16_device in [false, true] {
                            let build = Build::new(program, f16_device, head_dim, target);
                            let found = built.get(&build.file_name()).expect("built");
                            assert_eq!(
                                found.unit().unwrap().options,
                                build.unit().unwrap().options,
                                "{build:?}"
                            );
                        }
                    }
                }
            }
        }
        assert!(num_models >= 15, "{num_models} models in {models}");
    }

    #[test]
    fn every_target_has_the_same_kernels() {
        let stems = |target: &'static str| -> Vec<String> {
            let names = builds(target).into_keys();
            let stems = names.map(|name| name.split('.').next().unwrap().to_owned());
            // Hopper alone has the instructions.
            stems.filter(|stem| !stem.starts_with("attention_prefill")).collect()
        };
        let first = stems(TARGETS[0].0);
        assert!(first.len() > 50, "{}", first.len());
        for (target, _) in TARGETS {
            assert_eq!(stems(target), first, "{target}");
        }
    }

    #[test]
    fn a_damaged_or_foreign_file_is_refused() {
        let folder = std::env::temp_dir().join(format!("ingle-prebuilt-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let build = Build::new(Program::Pool, false, 64, "sm_80");
        let unit = build.unit().unwrap();
        let path = folder.join(build.file_name());
        write_kernel(&path, &unit, "sm_80", b"some code").unwrap();
        let settings = build.settings.clone();
        let read = || read_prebuilt(&folder, (8, 0), &[Program::Pool], &settings);
        assert_eq!(read().unwrap(), [b"some code"]);

        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            std::fs::write(&path, bytes).unwrap();
            let error = read().unwrap_err().to_string();
            assert!(error.contains("pool-bf16.sm_80.cubin: damaged"), "{error}");
        }
        std::fs::write(&path, &whole[..20]).unwrap();
        assert!(read().unwrap_err().to_string().contains("damaged"));

        let mut foreign = unit.clone();
        foreign.source = "// an older source";
        write_kernel(&path, &foreign, "sm_80", b"some code").unwrap();
        assert!(read().unwrap_err().to_string().contains("other sources"));
        std::fs::remove_file(&path).unwrap();
        assert!(read().unwrap_err().to_string().contains("pool-bf16.sm_80.cubin: No such file"));
        std::fs::remove_dir_all(folder).unwrap();
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
