//! [7] The parts of one chat answer: reasoning, content and tool calls, split from text that has
//! passed the stop matcher. Engine thread. The parts do not depend on how the text is cut.

use std::sync::Arc;

use crate::reasoning::{ReasoningSplitter, ReasoningStart, ReasoningTags};
use crate::tools::{CallIds, ToolFormat, ToolParser};

/// A piece of an answer. Pieces of the same kind follow each other only where something else was
/// between them, or where the answer was shown in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPiece {
    /// Text for the user.
    Content(String),
    /// Text of the model's reasoning.
    Reasoning(String),
    /// A tool call begins.
    Call {
        /// Its place among the calls of this answer.
        index: u32,
        /// Unique.
        id: String,
        /// The function.
        name: String,
    },
    /// More of a call's arguments: JSON text as the model wrote it.
    Arguments {
        /// The call's place.
        index: u32,
        /// A part of the JSON text, cut anywhere.
        text: String,
    },
}

/// Collects pieces; neighbours of one kind become one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    list: Vec<AnswerPiece>,
    /// The answer is calls: what is cut before it has a name is no content.
    without_content: bool,
}

impl Pieces {
    pub(crate) fn content(&mut self, more: &str) {
        match self.list.last_mut() {
            _ if self.without_content => {}
            Some(AnswerPiece::Content(text)) => text.push_str(more),
            _ if more.is_empty() => {}
            _ => self.list.push(AnswerPiece::Content(more.to_owned())),
        }
    }

    pub(crate) fn reasoning(&mut self, more: &str) {
        match self.list.last_mut() {
            Some(AnswerPiece::Reasoning(text)) => text.push_str(more),
            _ if more.is_empty() => {}
            _ => self.list.push(AnswerPiece::Reasoning(more.to_owned())),
        }
    }

    pub(crate) fn call(&mut self, index: u32, id: String, name: String) {
        self.list.push(AnswerPiece::Call { index, id, name });
    }

    pub(crate) fn arguments(&mut self, index: u32, more: &str) {
        match self.list.last_mut() {
            Some(AnswerPiece::Arguments { index: last, text }) if *last == index => {
                text.push_str(more);
            }
            _ if more.is_empty() => {}
            _ => self.list.push(AnswerPiece::Arguments { index, text: more.to_owned() }),
        }
    }
}

/// How the answers of one request are split.
#[derive(Clone, Debug)]
pub struct AnswerRules {
    /// Markers of the model's reasoning, and where the prompt left it; `None` for a model without.
    pub reasoning: Option<(ReasoningTags, ReasoningStart)>,
    /// Tools that may be called; `None` leaves calls in the content.
    pub tools: Option<ToolRules>,
}

impl AnswerRules {
    fn has_only_calls(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| tools.place == CallPlace::Alone)
    }
}

/// Which tool calls are looked for.
#[derive(Clone, Debug)]
pub struct ToolRules {
    /// How the model spells calls.
    pub format: ToolFormat,
    /// The functions that the request declared.
    pub names: Arc<[String]>,
    /// Whether one answer may have several calls.
    pub parallel: bool,
    /// What there may be besides calls.
    pub place: CallPlace,
}

/// Where calls stand in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPlace {
    /// Anywhere in a text.
    InText,
    /// A grammar lets nothing else through: a call that is cut before its name is nothing.
    Alone,
    /// A grammar lets calls through, or JSON: what begins as no call has none, whatever its strings
    /// look like.
    OrJson,
}

/// The state of one choice of a chat.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    reasoning: Option<ReasoningSplitter>,
    tools: Option<ToolParser>,
    pieces: Pieces,
    /// Content on its way from one stage to the next, reused.
    content: String,
}

impl AnswerParser {
    /// The state of an answer that begins here. `id_seed`: no other answer may have the same.
    pub fn new(rules: &AnswerRules, id_seed: u64) -> Self {
        let reasoning = rules.reasoning.as_ref();
        let tools = rules.tools.as_ref().map(|tools| {
            let ids = CallIds::new(tools.format, id_seed);
            ToolParser::new(tools, ids)
        });
        Self {
            reasoning: reasoning.map(|(tags, start)| ReasoningSplitter::new(tags, *start)),
            tools,
            pieces: Pieces { list: Vec::new(), without_content: rules.has_only_calls() },
            content: String::new(),
        }
    }

    /// Takes text that has passed the stop matcher.
    pub fn push(&mut self, text: &str) {
        match &mut self.reasoning {
            None => self.content.push_str(text),
            Some(splitter) => splitter.push(text, &mut self.pieces, &mut self.content),
        }
        self.pass_content();
    }

    /// The answer has ended: everything that was held back comes out, stage by stage.
    pub fn finish(&mut self) {
        if let Some(splitter) = &mut self.reasoning {
            splitter.finish(&mut self.pieces, &mut self.content);
        }
        self.pass_content();
        if let Some(tools) = &mut self.tools {
            tools.finish(&mut self.pieces);
        }
    }

    /// The pieces since the last time.
    pub fn take(&mut self) -> Vec<AnswerPiece> {
        std::mem::take(&mut self.pieces.list)
    }

    /// Whether `take` has something.
    pub fn has_pieces(&self) -> bool {
        !self.pieces.list.is_empty()
    }

    /// Whether the answer can have no content.
    pub fn has_only_calls(&self) -> bool {
        self.pieces.without_content
    }

    /// Tool calls that have begun.
    pub fn num_calls(&self) -> u32 {
        self.tools.as_ref().map_or(0, ToolParser::num_calls)
    }

    /// Only one call was asked for and it is complete: nothing more is of use.
    pub fn is_complete(&self) -> bool {
        self.tools.as_ref().is_some_and(ToolParser::is_complete)
    }

    fn pass_content(&mut self) {
        match &mut self.tools {
            None => self.pieces.content(&self.content),
            Some(tools) => tools.push(&self.content, &mut self.pieces),
        }
        self.content.clear();
    }
}
