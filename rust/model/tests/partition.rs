//! Models cut for several ranks: every number of every tensor is where it belongs, and models that cannot be cut are
//! refused by name.

#![allow(clippy::unwrap_used, reason = "a test helper may panic")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ingle_model::{
    Checkpoint, Cut, ExpertCut, LayerWeight, Partition, PartitionError, RankModel, TensorView,
    WeightRole, WeightSource, dequantise, open, open_without_weights,
};

const RANKS: [u32; 4] = [1, 2, 4, 8];
const CUTS: [ExpertCut; 2] = [ExpertCut::Inner, ExpertCut::Whole];

fn folders(below: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(below);
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

fn name(folder: &Path) -> &str {
    folder.file_name().unwrap().to_str().unwrap()
}

/// The models of all ranks, or why there are none.
fn models(
    checkpoint: &Checkpoint,
    ranks: u32,
    experts: ExpertCut,
) -> Result<(Partition, Vec<RankModel>), PartitionError> {
    let partition = Partition::new(&checkpoint.spec, ranks, experts)?;
    let models = (0..ranks).map(|rank| partition.rank_model(rank, &checkpoint.plan));
    let models = models.collect::<Result<_, _>>()?;
    Ok((partition, models))
}

/// What a tensor's elements stand for, row by row.
fn values(view: &TensorView, source: &dyn WeightSource) -> Vec<f32> {
    let (rows, cols) = (view.rows as usize, view.cols as usize);
    let mut values = vec![0.0; rows * cols];
    if let Some(groups) = &view.groups {
        let read = view.read_grouped(source, 0, rows).unwrap();
        let column_groups = groups.column_groups(source, view.cols).unwrap();
        read.widen(view.weight_type, &column_groups, &mut values);
        return values;
    }
    let mut stored = vec![0; view.byte_len as usize];
    view.read(source, 0, &mut stored).unwrap();
    dequantise(view.weight_type, &stored, &mut values);
    if let Some(scale) = &view.scale {
        let scales = scale.read(source).unwrap();
        for (at, value) in values.iter_mut().enumerate() {
            let (row, col) = (at / cols, at % cols);
            let line = row / scale.block_rows as usize * scale.cols as usize;
            *value *= scales[line + col / scale.block_cols as usize];
        }
    }
    values
}

/// Rows and columns of a part of a whole tensor.
fn place(cut: &Cut, whole: &TensorView) -> (Range<u32>, Range<u32>) {
    match cut {
        Cut::Rows(rows) => (rows.clone(), 0..whole.cols),
        Cut::Columns(columns) => (0..whole.rows, columns.clone()),
        Cut::Whole | Cut::Absent => (0..whole.rows, 0..whole.cols),
    }
}

/// The whole model's tensor of a role; a tied head is the embedding.
fn whole_view(checkpoint: &Checkpoint, role: WeightRole) -> &TensorView {
    let tensors = &checkpoint.plan.tensors;
    tensors.get(&role).unwrap_or_else(|| &tensors[&WeightRole::Embedding])
}

/// Checks that all ranks have each element equally often: once, or, where it is declared, more often.
fn check_cover(checkpoint: &Checkpoint, partition: &Partition, models: &[RankModel]) {
    let ranks = partition.ranks();
    let head = (ranks > 1).then_some(&WeightRole::LmHead);
    let roles = checkpoint.plan.tensors.keys().chain(head);
    for &role in roles {
        let whole = whole_view(checkpoint, role);
        let cuts: Vec<Cut> = (0..ranks).map(|rank| partition.cut(role, rank)).collect();
        let held = cuts.iter().zip(models).filter(|(cut, model)| {
            assert_eq!(**cut == Cut::Absent, !model.plan.tensors.contains_key(&role), "{role:?}");
            **cut != Cut::Absent
        });
        let mut edges = Vec::new();
        for (cut, model) in held {
            let (rows, columns) = place(cut, whole);
            let part = &model.plan.tensors[&role];
            assert_eq!(
                (part.rows, part.cols),
                (rows.end - rows.start, columns.end - columns.start)
            );
            edges.push(if matches!(cut, Cut::Rows(_)) { rows } else { columns });
        }
        let is_cut = |cut: &Cut| matches!(cut, Cut::Rows(_) | Cut::Columns(_));
        assert!(cuts.iter().all(is_cut) || !cuts.iter().any(is_cut), "{role:?}: {cuts:?}");
        if cuts.iter().any(is_cut) {
            // In rank order without a gap; keys and values may be repeated.
            let len = if matches!(cuts[0], Cut::Rows(_)) { whole.rows } else { whole.cols };
            let copies =
                if is_of_keys(role) { ranks / ranks.min(checkpoint.spec.num_kv_heads) } else { 1 };
            let mut next = 0;
            for same in edges.chunks(copies as usize) {
                assert!(same.iter().all(|edge| *edge == same[0]), "{role:?}: {edges:?}");
                assert_eq!(same[0].start, next, "{role:?}: {edges:?}");
                next = same[0].end;
            }
            assert_eq!(next, len, "{role:?}: {edges:?}");
        } else {
            let want = if is_held_once(role, partition) { 1 } else { ranks as usize };
            assert_eq!(edges.len(), want, "{role:?}: {cuts:?}");
        }
    }
}

fn is_of_keys(role: WeightRole) -> bool {
    use LayerWeight::{Key, KeyBias, Value, ValueBias};
    matches!(role, WeightRole::Layer(_, Key | Value | KeyBias | ValueBias))
}

/// Whole on one rank alone: parts of experts.
fn is_held_once(role: WeightRole, partition: &Partition) -> bool {
    use LayerWeight as W;
    let WeightRole::Layer(_, part) = role else { return false };
    let is_of_expert = matches!(
        part,
        W::ExpertGate(_)
            | W::ExpertUp(_)
            | W::ExpertDown(_)
            | W::ExpertGateBias(_)
            | W::ExpertUpBias(_)
            | W::ExpertDownBias(_)
    );
    is_of_expert && partition.ranks() > 1
}

/// Checks that a part holds the same numbers as the whole tensor at its place.
fn check_values(checkpoint: &Checkpoint, partition: &Partition, models: &[RankModel]) {
    let source = checkpoint.source.as_ref();
    let mut whole_values: BTreeMap<WeightRole, Vec<f32>> = BTreeMap::new();
    for model in models {
        for (&role, part) in &model.plan.tensors {
            let whole = whole_view(checkpoint, role);
            let all = whole_values.entry(role).or_insert_with(|| values(whole, source));
            let (rows, columns) = place(&partition.cut(role, model.rank), whole);
            let line =
                |row: u32| &all[(row * whole.cols + columns.start) as usize..][..columns.len()];
            let want: Vec<f32> = rows.clone().flat_map(line).copied().collect();
            assert_eq!(values(part, source), want, "{role:?} of rank {}", model.rank);
        }
    }
}

/// Why a golden model is not cut for so many ranks.
fn refusal(folder: &Path, ranks: u32, experts: ExpertCut) -> Option<String> {
    let checkpoint = open(folder).unwrap();
    models(&checkpoint, ranks, experts).err().map(|error| error.to_string())
}

#[test]
fn test_every_number_of_every_golden_model_is_on_its_rank() {
    let mut cut = [0; 9];
    for folder in folders("golden/models") {
        let checkpoint = open(&folder).unwrap();
        for (ranks, experts) in RANKS.into_iter().flat_map(|n| CUTS.map(|experts| (n, experts))) {
            let Ok((partition, models)) = models(&checkpoint, ranks, experts) else { continue };
            cut[ranks as usize] += 1;
            check_cover(&checkpoint, &partition, &models);
            check_values(&checkpoint, &partition, &models);
        }
    }
    assert_eq!(cut[1], 2 * folders("golden/models").len());
    assert!(cut[2] > 30 && cut[4] > 5 && cut[8] > 0, "{cut:?}");
}

#[test]
fn test_published_shapes_are_covered_without_a_gap() {
    let mut refused = Vec::new();
    for folder in folders("published") {
        let checkpoint = open_without_weights(&folder).unwrap();
        for ranks in RANKS {
            match models(&checkpoint, ranks, ExpertCut::Inner) {
                Ok((partition, models)) => {
                    check_cover(&checkpoint, &partition, &models);
                    let local = partition.local_spec();
                    let heads = local.num_attention_heads * ranks;
                    assert_eq!(heads, checkpoint.spec.num_attention_heads);
                    assert!(local.num_attention_heads.is_multiple_of(local.num_kv_heads));
                }
                // A test of its own.
                Err(_) if has_delta_net(&checkpoint) => {}
                Err(_) => refused.push(format!("{} {ranks}", name(&folder))),
            }
        }
    }
    let want = [
        // Heads that differ by layer.
        "gemma-4-12b 2",
        "gemma-4-12b 4",
        "gemma-4-12b 8",
        "gemma-4-26b-a4b 2",
        "gemma-4-26b-a4b 4",
        "gemma-4-26b-a4b 8",
        "gemma-4-31b 2",
        "gemma-4-31b 4",
        "gemma-4-31b 8",
        "gemma-4-e4b 2",
        "gemma-4-e4b 4",
        "gemma-4-e4b 8",
        // 20 heads.
        "glm-4.7-flash 8",
        // 2,880 columns in blocks of 32: whole experts can be spread.
        "gpt-oss-120b 4",
        "gpt-oss-120b 8",
        "gpt-oss-20b 4",
        "gpt-oss-20b 8",
        // Norms over all heads.
        "minimax-m2 2",
        "minimax-m2 4",
        "minimax-m2 8",
        "olmo-2-13b 2",
        "olmo-2-13b 4",
        "olmo-2-13b 8",
        "olmo-3-7b 2",
        "olmo-3-7b 4",
        "olmo-3-7b 8",
        // 10 heads of keys, 28 heads of queries.
        "phi-4 4",
        "phi-4 8",
        "qwen2.5-7b 8",
        // 768 columns in blocks of 128.
        "qwen3-30b-a3b-fp8 4",
        "qwen3-30b-a3b-fp8 8",
    ];
    assert_eq!(refused, want);
}

fn has_delta_net(checkpoint: &Checkpoint) -> bool {
    checkpoint.spec.layers.iter().any(|layer| layer.delta_net.is_some())
}

#[test]
fn test_one_rank_has_the_checkpoint_as_it_is() {
    for folder in folders("golden/models") {
        let checkpoint = open(&folder).unwrap();
        let (_, models) = models(&checkpoint, 1, ExpertCut::Inner).unwrap();
        assert_eq!(models[0].plan, checkpoint.plan);
        assert_eq!(models[0].spec, checkpoint.spec);
        assert_eq!(models[0].vocabulary, 0..checkpoint.spec.vocab_size);
    }
}

#[test]
fn test_a_refusal_names_what_cannot_be_divided() {
    let folder = |model: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models").join(model)
    };
    let inner = |model, ranks| refusal(&folder(model), ranks, ExpertCut::Inner).unwrap_or_default();
    let whole = |model, ranks| refusal(&folder(model), ranks, ExpertCut::Whole).unwrap_or_default();
    let of_two = |what: &str| format!("tensor_parallel_size 2: {what}");
    for (got, want) in [
        (inner("llama-fp8-block-tied", 2), of_two("does not divide num_attention_heads (3)")),
        (inner("qwen3_5", 2), of_two("a gated delta net cannot be divided among ranks")),
        (
            inner("olmo2", 2),
            of_two("a norm over all heads of queries and keys cannot be divided among ranks"),
        ),
        (
            inner("llama-awq", 2),
            of_two(
                "tensor model.layers.0.mlp.down_proj.qweight: columns 192 to 384 have no cut at \
                 groups of 128",
            ),
        ),
        (
            inner("llama-gptq-act-order", 2),
            of_two(
                "tensor model.layers.0.self_attn.o_proj.qweight: columns 0 to 32 have no cut at \
                 columns in another order than their groups (act order)",
            ),
        ),
        (whole("qwen3", 2), "enable_expert_parallel: the model has no experts".to_owned()),
    ] {
        assert_eq!(got, want);
    }
}

#[test]
fn test_heads_of_keys_are_neither_torn_nor_forgotten() {
    // 6 heads of keys for 4 ranks: a rank would have one and a half.
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/llama-mha-f32");
    let mut spec = open(&folder).unwrap().spec;
    (spec.num_attention_heads, spec.num_kv_heads) = (24, 6);
    let error = Partition::new(&spec, 4, ExpertCut::Inner).unwrap_err();
    assert_eq!(error, PartitionError::KvHeads { ranks: 4, kv_heads: 6 });
    spec.vocab_size = 100;
    let error = Partition::new(&spec, 3, ExpertCut::Inner).unwrap_err();
    let want = PartitionError::Uneven { ranks: 3, what: "intermediate_size", value: 256 };
    assert_eq!(error, want);
}

#[test]
fn test_uneven_vocabularies_are_cut_in_pieces_of_64() {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/llama-mha-f32");
    let mut spec = open(&folder).unwrap().spec;
    (spec.num_attention_heads, spec.num_kv_heads, spec.vocab_size) = (4, 4, 330);
    let partition = Partition::new(&spec, 4, ExpertCut::Inner).unwrap();
    let rows: Vec<_> = (0..4).map(|rank| partition.vocabulary(rank)).collect();
    assert_eq!(rows, [0..128, 128..256, 256..320, 320..330]);
}
