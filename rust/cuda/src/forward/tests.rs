//! Steps of the reference models on the scripted driver: every launch asserts that its slices hold what its kernel
//! reads and writes.

use std::path::Path;

use ingle_model::Timeline;

use crate::builds::Wanted;
use crate::config::CudaConfig;
use crate::fake;
use crate::kernels::Kernels;
use crate::model::{Model, StepShape};
use crate::model_shapes::gemm_shapes;
use crate::product::{Product, Products};
use crate::program::{KernelSettings, Program};
use crate::setup::Setup;
use crate::shapes::GemmOut;
use crate::stream::Stream;
use crate::supported::check_supported;

const ROWS: [u32; 2] = [8, 64];

/// A reference model whose products are checked and not computed; `None` if a card does not serve it.
fn model(path: &Path) -> Option<Model> {
    let checkpoint = ingle_model::open(path).unwrap();
    let config = CudaConfig {
        max_model_len: 256,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        kv_cache_memory_bytes: Some(64 << 20),
        ..CudaConfig::default()
    };
    check_supported(&checkpoint.spec, &config).ok()?;
    let context = fake::context();
    let setup = Setup::new(checkpoint.spec, &config, &context, None).unwrap();
    let memory = setup.map_memory(&checkpoint.plan, &Timeline::default()).unwrap();
    let weights = &memory.weight_layout.weights;
    let (mut shapes, head) = gemm_shapes(&setup.spec, &setup.shapes(), weights);
    shapes.push(head);
    let (spec, limits) = (&setup.spec, &context.info.limits);
    let wanted = Wanted { spec, limits, ranks: 1, shapes: &shapes, experts: &[] };
    let programs = Program::of(&wanted);
    let settings = KernelSettings { dims: setup.dims().unwrap(), dtypes: setup.dtypes };
    let codes = vec![Vec::new(); programs.len()];
    let kernels = Kernels::load(&context, &programs, &codes, &settings).unwrap();
    let plain = shapes.into_iter().filter(|shape| shape.out != GemmOut::Gated);
    let products = plain
        .flat_map(|shape| ROWS.map(|rows| ((rows, shape), Product::Checked(rows, shape))))
        .collect();
    let products = Products::new(products, memory.buffers.gemm_workspace);
    Some(setup.model(memory, kernels, products, None).unwrap())
}

/// The kernels of a step, in order, as their entries name them.
fn step(model: &Model, tokens: u32) -> Vec<String> {
    let stream = Stream::new(&model.context).unwrap();
    model.fill_rope_tables(&stream).unwrap();
    let before = fake::launches().len();
    let has_prompts = model.attention.prompt_group().is_some();
    model.step(&stream, StepShape { tokens, samples: 8, has_prompts }).unwrap();
    let names = fake::launches().into_iter().skip(before).map(|(name, _)| name);
    let operation = |name: String| name.rsplitn(3, '_').last().unwrap_or_default().to_owned();
    names.map(operation).collect()
}

fn reference(name: &str) -> std::path::PathBuf {
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models");
    Path::new(models).join(name)
}

#[test]
fn every_reference_model_is_launched_within_its_buffers() {
    let mut served = 0;
    for entry in std::fs::read_dir(reference("")).unwrap() {
        let path = entry.unwrap().path();
        let Some(model) = model(&path) else { continue };
        for rows in ROWS {
            assert!(step(&model, rows).len() > 10, "{}", path.display());
        }
        served += 1;
    }
    assert!(served >= 50, "{served} models");
}

/// The launches of a layer between two norms before attention, less what every layer has.
fn of_layer(name: &str, layer: usize) -> Vec<String> {
    let launches = step(&model(&reference(name)).unwrap(), 8);
    let is_attention = |name: &String| name == "rope_kv_paged";
    let starts = launches.iter().enumerate().filter(|(_, name)| is_attention(name));
    let starts: Vec<usize> = starts.map(|(at, _)| at).collect();
    let end = starts.get(layer + 1).copied().unwrap_or(launches.len());
    launches[starts[layer]..end].to_vec()
}

#[test]
fn layers_of_gemma_4_and_llama_4_are_launched_in_order() {
    let join =
        ["rms_norm_add", "rms_norm_rows", "act_mul_rows", "norm_add_scaled", "rms_norm_rows"];
    let prompt = ["rope_kv_paged", "attention_paged", "attention_prefill"];
    let dense = |attention: &[&'static str]| [attention, &join].concat();
    // The first layers have heads of 256, the last one of 512, which attention.cu alone takes.
    assert_eq!(of_layer("gemma4", 0), dense(&prompt));
    assert_eq!(of_layer("gemma4", 2)[..7], dense(&prompt[..2])[..7]);
    let token = ["token_gate_rows", "norm_add_scaled", "rms_norm_rows"];
    let with_token = [&prompt[..], &join[..4], &token].concat();
    assert_eq!(of_layer("gemma4-e", 0), with_token);
    let beside = [
        "rms_norm_add",
        "expert_inputs",
        "act_mul_rows",
        "moe_route",
        "moe_sort",
        "moe_gemm",
        "act_mul_rows",
        "moe_gemm",
        "expert_join",
        "rms_norm_rows",
    ];
    assert_eq!(of_layer("gemma4-experts", 0)[2..], beside);
    let scaled = [
        "rms_norm_rows",
        "act_mul_rows",
        "moe_route",
        "moe_sort",
        "moe_scale_rows",
        "moe_gemm",
        "act_mul_rows",
        "moe_gemm",
        "moe_combine",
        "rms_norm_rows",
    ];
    assert_eq!(of_layer("llama4", 0)[3..], scaled);
}
