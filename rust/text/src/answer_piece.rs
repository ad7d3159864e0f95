//! [7] The pieces that an answer is split into. Engine thread.

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
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    list: Vec<AnswerPiece>,
    /// The answer consists of calls: a call that is cut before its name is not content.
    without_content: bool,
}

impl Pieces {
    pub(crate) fn new(without_content: bool) -> Self {
        Self { list: Vec::new(), without_content }
    }

    /// The pieces since the last call.
    pub(crate) fn take(&mut self) -> Vec<AnswerPiece> {
        std::mem::take(&mut self.list)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn is_without_content(&self) -> bool {
        self.without_content
    }

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
