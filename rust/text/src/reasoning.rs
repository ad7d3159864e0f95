//! [7] Splits an answer into reasoning and content at the markers in the model's template. Engine
//! thread. Runs after the stop matcher and before the tool parser.

use crate::answer_piece::Pieces;
use crate::marker::MarkerFilter;

/// The markers around a model's reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningTags {
    /// For example `<think>`.
    pub open: String,
    /// For example `</think>`.
    pub close: String,
}

impl ReasoningTags {
    /// The markers that a chat template writes or looks for; `None` for a model that has none.
    pub fn detect(template: &str) -> Option<Self> {
        let tags =
            [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")];
        let named =
            |(open, close): &(&str, &str)| template.contains(open) || template.contains(close);
        let (open, close) = tags.into_iter().find(named)?;
        Some(Self { open: open.into(), close: close.into() })
    }

    /// What a rendered prompt leaves to the answer. Only its end counts: earlier turns, and texts of
    /// the request, may hold markers too.
    pub fn start_after(&self, prompt: &str) -> ReasoningStart {
        let end = prompt.trim_end();
        if end.ends_with(&self.open) {
            ReasoningStart::Opened
        } else if end.ends_with(&self.close) {
            ReasoningStart::Closed
        } else {
            ReasoningStart::Unopened
        }
    }
}

/// Where the prompt left off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The prompt opened the reasoning: the answer begins inside it.
    Opened,
    /// The answer may open it.
    Unopened,
    /// The prompt closed it: there is none.
    Closed,
}

/// The reasoning state of one choice. White space around reasoning belongs to the markers and is
/// dropped.
#[derive(Clone, Debug)]
pub(crate) struct ReasoningSplitter {
    place: Place,
    open: MarkerFilter,
    close: MarkerFilter,
    scratch: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing but white space has come since the start, or since the opening marker.
    Start {
        opened: bool,
    },
    Inside,
    /// After the closing marker, before the content.
    Between,
    Content,
}

impl ReasoningSplitter {
    pub(crate) fn new(tags: &ReasoningTags, start: ReasoningStart) -> Self {
        let place = match start {
            ReasoningStart::Opened => Place::Start { opened: true },
            ReasoningStart::Unopened => Place::Start { opened: false },
            ReasoningStart::Closed => Place::Content,
        };
        Self {
            place,
            open: MarkerFilter::new(&tags.open),
            close: MarkerFilter::new(&tags.close),
            scratch: String::new(),
        }
    }

    /// Takes text: reasoning goes to `out`, content is appended to `content`.
    pub(crate) fn push(&mut self, text: &str, out: &mut Pieces, content: &mut String) {
        for (at, c) in text.char_indices() {
            match self.place {
                Place::Start { opened } => self.step_start(c, opened, out, content),
                Place::Inside => self.step_inside(c, out),
                Place::Between if c.is_whitespace() => {}
                Place::Between | Place::Content => {
                    self.place = Place::Content;
                    content.push_str(&text[at..]);
                    return;
                }
            }
        }
    }

    /// The answer has ended.
    pub(crate) fn finish(&mut self, out: &mut Pieces, content: &mut String) {
        let mut held = String::new();
        match self.place {
            Place::Start { opened: true } => {
                self.open.end(&mut held);
                out.reasoning(held.trim());
            }
            Place::Start { opened: false } => self.open.end(content),
            Place::Inside => {
                self.close.end(&mut held);
                out.reasoning(held.trim_end());
            }
            Place::Between | Place::Content => {}
        }
    }

    fn step_start(&mut self, c: char, opened: bool, out: &mut Pieces, content: &mut String) {
        let mut text = std::mem::take(&mut self.scratch);
        if self.open.step(c, &mut text) {
            // Also where the prompt has opened it: some models open it once more.
            self.place = Place::Start { opened: true };
        } else if !text.is_empty() {
            // No opening marker stands here. Its beginning may be held anew, after the text.
            self.open.flush(&mut text);
            if opened {
                self.place = Place::Inside;
                for c in text.trim_start().chars() {
                    self.step_inside(c, out);
                }
            } else {
                self.place = Place::Content;
                content.push_str(&text);
            }
        }
        text.clear();
        self.scratch = text;
    }

    fn step_inside(&mut self, c: char, out: &mut Pieces) {
        let mut text = std::mem::take(&mut self.scratch);
        if self.close.step(c, &mut text) {
            self.place = Place::Between;
        }
        out.reasoning(&text);
        text.clear();
        self.scratch = text;
    }
}
