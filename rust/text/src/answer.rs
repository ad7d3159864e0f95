//! [7] Splits the answer of one chat choice into reasoning, content and tool calls, after the stop
//! matcher. Engine thread. The result does not depend on where the text is cut.

use crate::answer_piece::{AnswerPiece, Pieces};
use crate::harmony::HarmonyReader;
use crate::reasoning::{ReasoningFormat, ReasoningSplitter, ReasoningStart};
use crate::tools::{CallPlace, ToolParser, ToolRules};

/// How the answers of one request are split.
#[derive(Clone, Debug)]
pub struct AnswerRules {
    /// How the model marks its reasoning, and where the prompt left it; `None` for a model without.
    pub reasoning: Option<(ReasoningFormat, ReasoningStart)>,
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
    stages: Stages,
    pieces: Pieces,
}

#[derive(Clone, Debug)]
enum Stages {
    /// Reasoning is split off first, then calls are looked for.
    Apart {
        reasoning: Option<ReasoningSplitter>,
        tools: Option<Box<ToolParser>>,
        /// Content on its way from one stage to the next, reused.
        content: String,
    },
    /// One format for both.
    Harmony(Box<HarmonyReader>),
}

impl AnswerParser {
    /// The state of an answer that begins here. `id_seed`: no other answer may have the same.
    pub fn new(rules: &AnswerRules, id_seed: u64) -> Self {
        let tools = rules.tools.as_ref();
        let stages = match &rules.reasoning {
            Some((ReasoningFormat::Harmony, start)) => {
                Stages::Harmony(Box::new(HarmonyReader::new(*start, tools, id_seed)))
            }
            Some((ReasoningFormat::Tags(tags), start)) => Stages::Apart {
                reasoning: Some(ReasoningSplitter::new(tags, *start)),
                tools: tools.map(|tools| Box::new(ToolParser::new(tools, id_seed))),
                content: String::new(),
            },
            None => Stages::Apart {
                reasoning: None,
                tools: tools.map(|tools| Box::new(ToolParser::new(tools, id_seed))),
                content: String::new(),
            },
        };
        Self { stages, pieces: Pieces::new(rules.has_only_calls()) }
    }

    /// Takes text that has passed the stop matcher.
    pub fn push(&mut self, text: &str) {
        match &mut self.stages {
            Stages::Harmony(reader) => reader.push(text, &mut self.pieces),
            Stages::Apart { reasoning, tools, content } => {
                match reasoning {
                    None => content.push_str(text),
                    Some(splitter) => splitter.push(text, &mut self.pieces, content),
                }
                pass_content(content, tools, &mut self.pieces);
            }
        }
    }

    /// The answer has ended: everything that was held back comes out, stage by stage.
    pub fn finish(&mut self) {
        match &mut self.stages {
            Stages::Harmony(reader) => reader.finish(&mut self.pieces),
            Stages::Apart { reasoning, tools, content } => {
                if let Some(splitter) = reasoning {
                    splitter.finish(&mut self.pieces, content);
                }
                pass_content(content, tools, &mut self.pieces);
                if let Some(tools) = tools {
                    tools.finish(&mut self.pieces);
                }
            }
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
        match &self.stages {
            Stages::Harmony(reader) => reader.num_calls(),
            Stages::Apart { tools, .. } => tools.as_ref().map_or(0, |tools| tools.num_calls()),
        }
    }

    /// Only one call was asked for and it is complete: nothing more is of use.
    pub fn is_complete(&self) -> bool {
        match &self.stages {
            Stages::Harmony(reader) => reader.is_complete(),
            Stages::Apart { tools, .. } => tools.as_ref().is_some_and(|tools| tools.is_complete()),
        }
    }
}

fn pass_content(content: &mut String, tools: &mut Option<Box<ToolParser>>, pieces: &mut Pieces) {
    match tools {
        None => pieces.content(content),
        Some(tools) => tools.push(content, pieces),
    }
    content.clear();
}
