//! What every request needs to know about the loaded model. Built once at start, shared read-only.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ingle_core::{Limits, SamplingParams, SleepLevel, TokenId};
use ingle_model::{EmbeddingDefaults, EmbedsOnly};
use ingle_text::{
    BadWordsFactory, ChatTemplate, GrammarFactory, ReasoningFormat, Tokenizer, ToolFormat,
};

use crate::error::EngineError;
use crate::kv_events::SaltTable;

/// The model as requests see it.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// By name; `default` is used where the request names none.
    pub(crate) templates: BTreeMap<String, ChatTemplate>,
    /// How the model spells tool calls and reasoning.
    pub(crate) answer_format: AnswerFormat,
    pub(crate) grammars: GrammarFactory,
    pub(crate) bad_words: BadWordsFactory,
    /// Ids that end a text: those of config, generation_config and tokenizer together.
    pub(crate) eos_token_ids: Arc<[TokenId]>,
    /// Sampling parameters of a request that names none.
    pub(crate) defaults: SamplingParams,
    /// Why the model makes embeddings only; `None` if it generates text.
    pub(crate) embeds_only: Option<EmbedsOnly>,
    /// How embeddings are made where the request says nothing.
    pub(crate) embedding: EmbeddingDefaults,
    pub(crate) max_model_len: u32,
    /// Ids that have both a row in the model and an entry in the tokenizer: 0 to this.
    pub(crate) vocab_size: u32,
    pub(crate) limits: Limits,
    pub(crate) num_engines: u32,
    /// Requests that all engines can run at once.
    pub(crate) max_num_seqs: u32,
    /// Requests that can be in the engines at once: running and waiting.
    pub(crate) capacity: u32,
    /// The deepest sleep that all engines can sleep.
    pub(crate) deepest_sleep: SleepLevel,
    pub(crate) seeds: Seeds,
    /// Keys the hash of tenant and cache salt, new with each start.
    pub(crate) salts: RandomState,
    /// Cache salts by their hash; only with KV events.
    pub(crate) salt_table: Option<Arc<SaltTable>>,
}

/// How this model spells what is not content.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerFormat {
    pub(crate) tools: Option<ToolFormat>,
    pub(crate) reasoning: Option<ReasoningFormat>,
}

impl AnswerFormat {
    /// Detected from the chat templates, by name: tool calls from `tool_use` first, reasoning from
    /// `default` first. `tool_parser` and `reasoning_parser`: the settings that decide instead.
    ///
    /// # Errors
    /// `EngineError::Model` that lists the names for one that is unknown.
    pub(crate) fn new(
        sources: &BTreeMap<String, String>,
        tool_parser: Option<&str>,
        reasoning_parser: Option<&str>,
    ) -> Result<Self, EngineError> {
        let among = |first: &'static str| {
            let others = sources.iter().filter(move |(name, _)| *name != first);
            let first = sources.get(first).into_iter();
            first.chain(others.map(|(_, source)| source))
        };
        let tools = match tool_parser {
            None | Some("auto") => among("tool_use").find_map(|source| ToolFormat::detect(source)),
            Some("none") => None,
            Some(name) => {
                Some(ToolFormat::named(name).ok_or_else(|| {
                    unknown_parser("tool_call_parser", &ToolFormat::names(), name)
                })?)
            }
        };
        let reasoning = match reasoning_parser {
            None | Some("auto") => {
                among("default").find_map(|source| ReasoningFormat::detect(source))
            }
            Some("none") => None,
            Some(name) => Some(ReasoningFormat::named(name).ok_or_else(|| {
                unknown_parser("reasoning_parser", &ReasoningFormat::names(), name)
            })?),
        };
        if tools == Some(ToolFormat::Harmony) && reasoning != Some(ReasoningFormat::Harmony) {
            return Err(EngineError::Model(
                "tool_call_parser: openai needs reasoning_parser openai_gptoss: calls are messages \
                 of the same format"
                    .to_owned(),
            ));
        }
        Ok(Self { tools, reasoning })
    }

    /// Ids of markers that are special tokens: they stay in the text that is split.
    pub(crate) fn marker_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let tools = self.tools.map_or(&[][..], ToolFormat::markers).iter().copied();
        let reasoning = self.reasoning.iter().flat_map(ReasoningFormat::markers);
        tools.chain(reasoning).filter_map(|marker| tokenizer.token_to_id(marker)).collect()
    }
}

fn unknown_parser(setting: &str, names: &[&str], given: &str) -> EngineError {
    let names = names.join(", ");
    EngineError::Model(format!("{setting}: must be auto, none, {names}; not {given:?}"))
}

/// Seeds of requests that name none: repeatable from one start seed, or new with each start.
#[derive(Debug)]
pub(crate) struct Seeds {
    start: u64,
    count: AtomicU64,
}

impl Seeds {
    pub(crate) fn new(start: Option<u64>) -> Self {
        // RandomState is keyed by the operating system's random numbers.
        let start = start.unwrap_or_else(|| RandomState::new().hash_one("seed"));
        Self { start, count: AtomicU64::new(0) }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): neighbouring counts give unrelated seeds.
    pub(crate) fn next(&self) -> u64 {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let mut z =
            self.start.wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
