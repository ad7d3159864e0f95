//! [7] Splits the answer of one chat choice into reasoning, content and tool calls, after the stop
//! matcher. Engine thread. The result does not depend on where the text is cut.

use crate::answer_piece::{AnswerPiece, Pieces};
use crate::reasoning::{ReasoningSplitter, ReasoningStart, ReasoningTags};
use crate::tools::{CallIds, CallPlace, ToolParser, ToolRules};

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
            pieces: Pieces::new(rules.has_only_calls()),
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
        self.pieces.take()
    }

    /// Whether `take` has something.
    pub fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Whether the answer can have no content.
    pub fn has_only_calls(&self) -> bool {
        self.pieces.is_without_content()
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
