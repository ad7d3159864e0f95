//! [7] Finds tool calls in a streamed answer, in whichever format the model writes them. Engine thread.

use super::block_calls::BlockCalls;
use super::ids::CallIds;
use super::json_calls::JsonCalls;
use super::rules::ToolRules;
use crate::answer_piece::Pieces;

/// The tool state of one choice.
#[derive(Clone, Debug)]
pub(crate) enum ToolParser {
    /// A call is an object of JSON.
    Json(JsonCalls),
    /// A call's name stands before its arguments, in markup.
    Block(BlockCalls),
}

impl ToolParser {
    pub(crate) fn new(rules: &ToolRules, id_seed: u64) -> Self {
        let ids = CallIds::new(rules.format, id_seed);
        match rules.format.dialect() {
            Some(dialect) => Self::Block(BlockCalls::new(dialect, rules, ids)),
            None => Self::Json(JsonCalls::new(rules, ids)),
        }
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Pieces) {
        match self {
            Self::Json(calls) => calls.push(text, out),
            Self::Block(calls) => calls.push(text, out),
        }
    }

    /// The answer has ended.
    pub(crate) fn finish(&mut self, out: &mut Pieces) {
        match self {
            Self::Json(calls) => calls.finish(out),
            Self::Block(calls) => calls.finish(out),
        }
    }

    /// Calls that have begun.
    pub(crate) fn num_calls(&self) -> u32 {
        match self {
            Self::Json(calls) => calls.num_calls(),
            Self::Block(calls) => calls.num_calls(),
        }
    }

    /// Only one call is allowed and it is there.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Json(calls) => calls.is_complete(),
            Self::Block(calls) => calls.is_complete(),
        }
    }
}
