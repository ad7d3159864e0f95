//! A model divided among ranks against the whole one: equal bit for bit, if the whole one adds its products back to
//! the hidden size in the same parts.
//!
//! Such a whole model is built here from ranks that each compute everything, but whose output and down projections
//! have zeros in the columns of other ranks. A chain of products and sums passes zeros unchanged.

use std::path::{Path, PathBuf};

use ingle_model::{
    Checkpoint, Cut, ExpertCut, LayerWeight, Order, Partition, TensorView, WeightRole, WeightType,
    dequantise, open,
};

use super::*;

const BLOCK_SIZE: u32 = 4;
const NUM_BLOCKS: u32 = 64;

/// The checkpoint's files, and behind them one in memory.
struct WithMemory<'a> {
    files: &'a dyn WeightSource,
    num_files: usize,
    memory: Vec<u8>,
}

impl WeightSource for WithMemory<'_> {
    fn read_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        if file < self.num_files {
            return self.files.read_at(file, offset, buffer);
        }
        buffer.copy_from_slice(&self.memory[offset as usize..][..buffer.len()]);
        Ok(())
    }
}

impl WithMemory<'_> {
    /// A matrix with zeros outside of some columns.
    fn masked(&mut self, view: &TensorView, columns: std::ops::Range<u32>) -> TensorView {
        let mut stored = vec![0; view.byte_len as usize];
        view.read(self.files, 0, &mut stored).unwrap();
        let mut values = vec![0.0; (view.rows * view.cols) as usize];
        dequantise(view.weight_type, &stored, &mut values);
        for (at, value) in (0..).zip(&mut values) {
            if !columns.contains(&(at % view.cols)) {
                *value = 0.0;
            }
        }
        let offset = self.memory.len() as u64;
        self.memory.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        TensorView {
            file: self.num_files,
            offset,
            byte_len: self.memory.len() as u64 - offset,
            order: Order::Rows,
            weight_type: WeightType::F32,
            ..view.clone()
        }
    }
}

fn config(ranks: u32) -> CpuConfig {
    CpuConfig {
        block_size: BLOCK_SIZE,
        num_blocks: NUM_BLOCKS,
        max_model_len: 128,
        tensor_parallel_size: ranks,
        threads: 1,
        ..CpuConfig::default()
    }
}

/// The whole model, its sums in the parts of the partition.
fn in_parts(checkpoint: &Checkpoint, partition: &Partition) -> Model {
    let Checkpoint { spec, plan, source, .. } = checkpoint;
    let mut source =
        WithMemory { files: source.as_ref(), num_files: plan.files.len(), memory: Vec::new() };
    let rank_model = |rank: u32| {
        let mut plan = plan.clone();
        for (&role, view) in &mut plan.tensors {
            let WeightRole::Layer(_, part) = role else { continue };
            if let Cut::Columns(columns) = partition.cut(role, rank)
                && is_projection_back(part)
            {
                *view = source.masked(view, columns);
            }
        }
        // The first rank has the head.
        let tied = spec.tie_word_embeddings || rank > 0;
        RankModel {
            rank,
            spec: ModelSpec { tie_word_embeddings: tied, ..spec.clone() },
            plan,
            vocabulary: 0..spec.vocab_size,
            experts: Partition::new(spec, 1, ExpertCut::Inner).unwrap().experts_of(0),
            adds_expert_bias: rank == 0,
        }
    };
    let ranks: Vec<RankModel> = (0..partition.ranks()).map(rank_model).collect();
    Model::of_ranks(spec, &ranks, &source, &config(partition.ranks())).unwrap()
}

fn is_projection_back(part: LayerWeight) -> bool {
    use LayerWeight::{Down, ExpertDown, Output, SharedDown};
    matches!(part, Output | Down | ExpertDown(_) | SharedDown)
}

/// Logits of all positions of a sequence that comes as a chunk of a prompt, its rest, and single tokens.
fn logits(model: &mut Model) -> Vec<Vec<f32>> {
    let tokens: Vec<TokenId> = (0..40).map(|at| TokenId((at * 37 + 11) % 300)).collect();
    let groups = crate::kv_groups(&model.spec).len() as u32;
    assert!(groups * 10 <= NUM_BLOCKS);
    let table = |group| (0..10).rev().map(|at| BlockId(group * 10 + at)).collect();
    let tables: Vec<Vec<BlockId>> = (0..groups).map(table).collect();
    let mut rows = Vec::new();
    let mut start = 0;
    for count in [17, 15, 1, 1, 1, 1, 1, 1, 1, 1] {
        model.forward(&[Sequence {
            tokens: &tokens[start..start + count],
            start: start as u32,
            tables: &tables,
            slot: SlotId::first(0),
            saves: &[],
        }]);
        model.compute_logits(&(0..count).collect::<Vec<_>>());
        rows.extend((0..count).map(|row| model.logit_row(row).to_vec()));
        start += count;
    }
    rows
}

/// Golden models whose projections back are plain numbers.
fn checkpoints() -> Vec<(PathBuf, Checkpoint)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let opened = folders.into_iter().map(|folder| (folder.clone(), open(&folder).unwrap()));
    let is_plain = |view: &TensorView| view.scale.is_none() && view.groups.is_none();
    opened.filter(|(_, checkpoint)| checkpoint.plan.tensors.values().all(is_plain)).collect()
}

#[test]
fn test_ranks_give_the_bits_of_the_whole_model_summed_in_their_parts() {
    let mut compared = 0;
    for (folder, checkpoint) in checkpoints() {
        let Checkpoint { spec, plan, source, .. } = &checkpoint;
        for (ranks, experts) in [2, 4, 8]
            .into_iter()
            .flat_map(|n| [ExpertCut::Inner, ExpertCut::Whole].map(|experts| (n, experts)))
        {
            let Ok(partition) = Partition::new(spec, ranks, experts) else { continue };
            let config =
                CpuConfig { expert_parallel: experts == ExpertCut::Whole, ..config(ranks) };
            let mut divided = Model::load(spec, plan, source.as_ref(), &config).unwrap();
            if experts == ExpertCut::Inner {
                let mut whole = in_parts(&checkpoint, &partition);
                let context = format!("{} on {ranks}", folder.display());
                assert!(logits(&mut divided) == logits(&mut whole), "{context}");
                check_keys(&divided, &whole, &context);
                compared += 1;
            } else {
                // Whole experts are summed in other parts: equal but for rounding.
                let (ours, others) = (logits(&mut divided), {
                    let mut whole =
                        Model::load(spec, plan, source.as_ref(), &self::config(1)).unwrap();
                    logits(&mut whole)
                });
                let pairs = ours.iter().flatten().zip(others.iter().flatten());
                let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-3, "{} on {ranks}: {worst}", folder.display());
            }
        }
    }
    assert!(compared > 20, "{compared}");
}

/// The heads of all ranks side by side are those of the whole model.
fn check_keys(divided: &Model, whole: &Model, context: &str) {
    let ranks = divided.memory().kv.len();
    let (own, all) = (divided.of_rank.num_kv_heads as usize, whole.spec.num_kv_heads as usize);
    for (rank, kv) in divided.memory().kv.iter().enumerate() {
        for head in 0..own {
            let of_whole = if own * ranks == all { rank * own + head } else { rank * all / ranks };
            for layer in 0..divided.spec.layers.len() {
                let (place, sizes) = kv.of_layer(layer);
                let (_, whole_sizes) = whole.memory().kv[0].of_layer(layer);
                for block in (0..NUM_BLOCKS).map(BlockId) {
                    let (ours, others) = (
                        kv.head(&sizes, place.index, block, head),
                        whole.memory().kv[0].head(&whole_sizes, place.index, block, of_whole),
                    );
                    assert!(ours == others, "{context}: layer {layer}, {block}, head {head}");
                }
            }
        }
    }
}
