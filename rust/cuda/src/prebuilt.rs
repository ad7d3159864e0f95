//! Kernels built ahead of time for machines without NVRTC; they read dimensions at run time. The
//! build of the wheel writes them (without a GPU), and loading reads them.

use std::collections::BTreeMap;
use std::path::Path;

use crate::CudaError;
use crate::cache::key;
use crate::compile::{Compiler, Unit};
use crate::contract::Dims;
use crate::dtypes::Dtypes;
use crate::limits::DeviceLimits;
use crate::program::{KernelSettings, Program};
use crate::registry::HEADERS;
use crate::sys::LibraryPaths;

/// Names of the files that [`write_prebuilt_kernels`] made, one a line: what a wheel has to hold.
const LIST: &str = "list.txt";

/// Writes every kernel for every target to `folder`, and the list of these files; returns how many they are. Blocking,
/// minutes.
///
/// # Errors
/// If NVRTC is missing or refuses a kernel, or a file cannot be written.
pub fn write_prebuilt_kernels(libraries: &LibraryPaths, folder: &Path) -> Result<usize, CudaError> {
    let compiler = Compiler::open(libraries)?;
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut written = Vec::new();
    for target in &TARGETS {
        let builds = builds(target);
        let units: Vec<_> = builds.values().map(Build::unit).collect();
        let (codes, _) = compiler.build(&units, &HEADERS, target.name, None, threads)?;
        for ((name, unit), code) in builds.keys().zip(&units).zip(&codes) {
            write_kernel(&folder.join(name), unit, target.name, code)?;
            written.push(name.clone());
        }
    }
    let list = folder.join(LIST);
    std::fs::write(&list, written.join("\n") + "\n").map_err(|source| io(&list, source))?;
    Ok(written.len())
}

/// Reads the kernels of `programs` from `folder`, in their order.
///
/// # Errors
/// The first file that is missing, is damaged or was made from other sources than this build's.
pub(crate) fn read_prebuilt(
    folder: &Path,
    limits: &DeviceLimits,
    programs: &[Program],
    settings: &KernelSettings,
) -> Result<Vec<Vec<u8>>, CudaError> {
    let target = target_for(limits.compute_capability);
    programs
        .iter()
        .map(|program| {
            let build = Build::new(*program, settings.dtypes, target);
            read_kernel(&folder.join(build.file_name()), &build.unit(), target.name)
        })
        .collect()
}

/// One file of the folder: a program for a target, all that decides its code and nothing else.
#[derive(Debug)]
struct Build {
    program: Program,
    settings: KernelSettings,
    target: &'static Target,
}

impl Build {
    fn new(program: Program, dtypes: Dtypes, target: &'static Target) -> Self {
        Self { program, settings: KernelSettings { dims: Dims::default(), dtypes }, target }
    }

    fn unit(&self) -> Unit {
        self.program.runtime_unit(&self.settings)
    }

    fn file_name(&self) -> String {
        let target = self.target.name;
        let suffix = if target.starts_with("compute_") { "ptx" } else { "cubin" };
        format!("{}.{target}.{suffix}", self.program.runtime_name(&self.settings))
    }
}

/// Every file of a target, by name.
fn builds(target: &'static Target) -> BTreeMap<String, Build> {
    let mut builds = BTreeMap::new();
    for dtypes in Dtypes::ALL {
        for program in Program::of_any_model(&target.assumed, dtypes) {
            let build = Build::new(program, dtypes, target);
            builds.insert(build.file_name(), build);
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
    let mut bytes = std::fs::read(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => CudaError::Unsupported(format!(
            "kernel {}: not among those built ahead, which are for shapes of published models; with the extra \
             cuda13 any is compiled at load",
            path.display()
        )),
        _ => io(path, source),
    })?;
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
    let mut parts = vec![unit.source.as_bytes(), options.as_bytes(), target.as_bytes()];
    parts.extend(HEADERS.iter().map(|(_, text)| text.as_bytes()));
    let made_from = key("prebuilt", &parts);
    *blake3::Hasher::new().update(made_from.as_bytes()).update(code).finalize().as_bytes()
}

fn io(path: &Path, source: std::io::Error) -> CudaError {
    CudaError::Io { what: path.display().to_string(), source }
}

/// What kernels are built ahead for.
#[derive(Debug)]
struct Target {
    /// As NVRTC names it.
    name: &'static str,
    /// The card that launch sizes in the code are chosen for. Its number of SMs decides no code.
    assumed: DeviceLimits,
}

/// All targets. What follows from limits alone (grids, which tile fits) is computed at load for the card that
/// is there.
static TARGETS: [Target; 5] = [
    Target { name: "sm_80", assumed: DeviceLimits::assumed((8, 0), 108, 164) },
    Target { name: "sm_86", assumed: DeviceLimits::assumed((8, 6), 84, 100) },
    Target { name: "sm_89", assumed: DeviceLimits::assumed((8, 9), 142, 100) },
    Target { name: "sm_90a", assumed: DeviceLimits::assumed((9, 0), 132, 228) },
    Target { name: "compute_80", assumed: DeviceLimits::assumed((8, 0), 108, 164) },
];

/// The build that runs on a card: its own, else that of the same generation, else the PTX that the
/// driver compiles.
fn target_for(compute_capability: (u32, u32)) -> &'static Target {
    let [sm_80, sm_86, sm_89, sm_90a, compute_80] = &TARGETS;
    match compute_capability {
        (9, 0) => sm_90a,
        (8, 9) => sm_89,
        (8, 6 | 7) => sm_86,
        (8, _) => sm_80,
        _ => compute_80,
    }
}

#[cfg(test)]
mod tests {
    use ingle_model::{HeadSizes, RopeKind, RopeSpec};

    use super::*;
    use crate::arena::LayoutBuilder;
    use crate::attention_launch::stages;
    use crate::builds::{HEAD_DIMS, SINK_HEAD_DIM, WIDE_HEAD_DIM, Wanted, has_chunks};
    use crate::config::CudaConfig;
    use crate::dtypes::has_e4m3;
    use crate::model_shapes::gemm_shapes;
    use crate::registry::Source;
    use crate::shapes::Shapes;
    use crate::supported::check_supported;
    use crate::variant::Variant;
    use crate::weight_layout::{Kept, WeightLayout};

    const POOL: Program = Program { source: Source::Pool, variant: Variant::Plain };

    #[test]
    fn every_card_finds_a_target_that_is_built() {
        for capability in [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)] {
            let target = target_for(capability);
            assert!(target.assumed.compute_capability <= capability, "{capability:?} {target:?}");
        }
        let name =
            |capability| Build::new(POOL, Dtypes::ALL[0], target_for(capability)).file_name();
        assert_eq!(name((8, 0)), "pool-bf16.sm_80.cubin");
        assert_eq!(name((12, 0)), "pool-bf16.compute_80.ptx");
    }

    /// Whatever a model needs on a card is in the set that is built for the card's target.
    #[test]
    fn the_set_is_complete_for_every_model_and_target() {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models");
        let mut num_models = 0;
        for entry in std::fs::read_dir(models).unwrap() {
            let checkpoint = ingle_model::open(&entry.unwrap().path()).unwrap();
            let (mut spec, plan) = (checkpoint.spec, checkpoint.plan);
            if check_supported(&spec, &CudaConfig::default()).is_err() {
                continue;
            }
            num_models += 1;
            // `check_supported` refuses sinks with other heads. Of models whose heads differ, and of those that cut
            // attention into chunks, the widths of published ones are built.
            let (has_sinks, chunks) = (spec.attention.sinks, has_chunks(&spec));
            let differ = spec.layers.iter().any(|layer| layer.heads.is_some());
            let is_served = |kind: &(u32, bool)| {
                let only = [(has_sinks, SINK_HEAD_DIM), (chunks, 128), (differ, 256)];
                only.iter().all(|&(is_so, width)| !is_so || *kind == (width, true))
            };
            let part = |rope: &RopeSpec| matches!(rope.kind, RopeKind::Proportional { .. });
            let wide: Vec<bool> = spec.ropes.iter().map(part).collect();
            for layer in spec.layers.iter_mut().filter(|_| differ) {
                let is_wide = layer.rope.is_some_and(|rope| wide[rope]);
                let (num_kv_heads, head_dim) = if is_wide { (1, WIDE_HEAD_DIM) } else { (2, 256) };
                layer.heads = Some(HeadSizes { num_kv_heads, head_dim });
            }
            // Of gated delta nets those of published models are built.
            for net in spec.layers.iter_mut().filter_map(|layer| layer.delta_net.as_mut()) {
                (net.key_dim, net.value_dim, net.conv_kernel) = (128, 128, 4);
            }
            let kinds = HEAD_DIMS.into_iter().flat_map(|d| [(d, true), (d, false)]);
            for (head_dim, causal) in kinds.filter(is_served) {
                spec.head_dim = head_dim;
                spec.attention.causal = causal;
                for (capability, kib) in
                    [((8, 0), 164), ((8, 6), 100), ((8, 9), 100), ((9, 0), 228), ((12, 0), 100)]
                {
                    let target = target_for(capability);
                    let built = builds(target);
                    let limits = DeviceLimits::assumed(capability, 1, kib);
                    for dtypes in Dtypes::ALL {
                        // 4-bit matrices are widened where NVRTC is missing.
                        let kept = Kept { e4m3: has_e4m3(capability, dtypes), ..Kept::default() };
                        let measuring = LayoutBuilder::measuring();
                        let layout = WeightLayout::new(measuring, &spec, &plan, kept).unwrap();
                        let weight = dtypes.weight();
                        let (mut shapes, head) =
                            gemm_shapes(&spec, &Shapes::of(&spec, weight), &layout.weights);
                        shapes.push(head);
                        let wanted = Wanted {
                            spec: &spec,
                            limits: &limits,
                            ranks: 2,
                            shapes: &shapes,
                            experts: &[],
                        };
                        for program in Program::of(&wanted) {
                            let build = Build::new(program, dtypes, target);
                            let found = built.get(&build.file_name()).expect("built");
                            assert_eq!(found.unit().options, build.unit().options, "{build:?}");
                        }
                    }
                }
            }
        }
        assert!(num_models >= 15, "{num_models} models in {models}");
    }

    #[test]
    fn every_target_has_the_same_kernels() {
        let stems = |target: &'static Target| -> Vec<String> {
            let names = builds(target).into_keys();
            let stems = names.map(|name| name.split('.').next().unwrap().to_owned());
            // Only Hopper has these instructions, and some cards cannot compute with e4m3 numbers.
            let everywhere = |stem: &String| {
                !stem.starts_with("attention_prefill")
                    && !stem.starts_with("quantise")
                    && !stem.contains("-e4m3-")
            };
            stems.filter(everywhere).collect()
        };
        let first = stems(&TARGETS[0]);
        assert!(first.len() > 50, "{}", first.len());
        for target in &TARGETS {
            assert_eq!(stems(target), first, "{target:?}");
        }
    }

    #[test]
    fn a_damaged_or_foreign_file_is_refused() {
        let folder = std::env::temp_dir().join(format!("ingle-prebuilt-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let build = Build::new(POOL, Dtypes::ALL[0], &TARGETS[0]);
        let limits = build.target.assumed;
        let unit = build.unit();
        let path = folder.join(build.file_name());
        write_kernel(&path, &unit, "sm_80", b"some code").unwrap();
        let settings = build.settings.clone();
        let read = || read_prebuilt(&folder, &limits, &[POOL], &settings);
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
        assert!(read().unwrap_err().to_string().contains("pool-bf16.sm_80.cubin: not among those"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// The PTX is built with the launch sizes of 8.0; a newer card must choose the same.
    #[test]
    fn ptx_and_launch_agree_on_stages() {
        let built = &target_for((12, 0)).assumed;
        for head_dim in HEAD_DIMS {
            for (capability, kib) in [((10, 0), 228), ((12, 0), 100)] {
                let card = DeviceLimits::assumed(capability, 1, kib);
                assert_eq!(stages(&card, head_dim), stages(built, head_dim));
            }
        }
    }
}
