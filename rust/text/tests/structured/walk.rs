//! The tiny models' tokenizer, and a model that knows nothing: it takes any token that the mask allows.

use std::sync::Arc;

use ingle_text::{
    Grammar, GrammarBudget, GrammarFactory, GrammarSource, GrammarSpec, GrammarState, Tokenizer,
    ToolFormat, ToolSpec,
};

/// 388 tokens; `<|eos|>` is 1 and `<|im_end|>` is 4.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/qwen3/tokenizer.json");
    Arc::new(Tokenizer::from_json(&std::fs::read(path).unwrap(), None).unwrap())
}

pub(crate) const EOS: [u32; 2] = [1, 4];
/// Rows of the tiny models' last layer: more than the tokenizer has.
pub(crate) const ROWS: u32 = 512;

/// All in which a call is JSON.
pub(crate) const FORMATS: [ToolFormat; 8] = [
    ToolFormat::Hermes,
    ToolFormat::SmolLm2,
    ToolFormat::Llama3,
    ToolFormat::Mistral,
    ToolFormat::MistralNamed,
    ToolFormat::Granite,
    ToolFormat::Phi4Mini,
    ToolFormat::Phi4MiniSystem,
];

/// Functions of these names, of whose arguments nothing is known.
pub(crate) fn functions(names: &[&str]) -> Arc<[ToolSpec]> {
    let spec = |name: &&str| ToolSpec { name: (*name).into(), parameters: None, strict: false };
    names.iter().map(spec).collect()
}

pub(crate) fn factory() -> GrammarFactory {
    GrammarFactory::start(tokenizer(), ROWS, &EOS).unwrap()
}

pub(crate) fn spec(source: GrammarSource) -> GrammarSpec {
    GrammarSpec { field: "response_format", source, reasoning: None }
}

pub(crate) fn compile(source: GrammarSource) -> Arc<Grammar> {
    factory().compile(&spec(source), GrammarBudget::default()).unwrap()
}

/// A small generator, so that a seed gives the same walk everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// How a walk ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished,
    Limit,
}

/// Ids that a mask allows.
pub(crate) fn allowed(mask: &[u32]) -> Vec<u32> {
    assert_eq!(mask.len(), ROWS.div_ceil(32) as usize);
    let ids: Vec<u32> =
        (0..ROWS).filter(|&id| mask[id as usize / 32] & (1 << (id % 32)) != 0).collect();
    assert!(ids.iter().all(|&id| id < 388), "an id beyond the tokenizer is allowed");
    ids
}

/// Takes random allowed tokens; gives the text without end-of-text. After `long` tokens the walk
/// goes for closing tokens, as a model at the end of its answer does.
pub(crate) fn walk(state: &mut GrammarState, seed: u64, long: usize) -> (String, End) {
    let tokenizer = tokenizer();
    let mut random = Random(seed);
    let mut taken = Vec::new();
    for step in 0..8 * long {
        let ids = allowed(&state.mask().unwrap());
        assert!(!ids.is_empty(), "seed {seed}: no token is allowed after {taken:?}");
        let eos = ids.iter().find(|id| EOS.contains(id));
        assert_eq!(eos.is_some(), state.may_end(), "seed {seed}: end-of-text after {taken:?}");
        let closing = |id: &&u32| {
            let bytes = tokenizer.token_bytes(**id).unwrap();
            bytes.len() == 1 && b"\"}]".contains(&bytes[0])
        };
        let id = match (step > long).then(|| eos.or(ids.iter().find(closing))).flatten() {
            Some(&id) => id,
            None => ids[random.below(ids.len())],
        };
        if EOS.contains(&id) {
            return (tokenizer.decode(&taken, true), End::Finished);
        }
        taken.push(id);
        state.accept(id).unwrap_or_else(|error| panic!("seed {seed}: {error} after {taken:?}"));
        if state.is_finished() {
            return (tokenizer.decode(&taken, true), End::Finished);
        }
    }
    (tokenizer.decode(&taken, true), End::Limit)
}
