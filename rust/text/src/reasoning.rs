//! [7] Splits an answer into reasoning and content at the markers in the model's template. Engine
//! thread. Runs after the stop matcher and before the tool parser.

use crate::answer_piece::Pieces;
use crate::marker::MarkerFilter;
use crate::tools::HARMONY;

/// How a model marks its reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// Between two markers, before the content.
    Tags(ReasoningTags),
    /// In messages of its own, as everything in the harmony format of gpt-oss.
    Harmony,
}

/// The markers around a model's reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningTags {
    /// For example `<think>`, and what follows it in every case.
    pub open: String,
    /// The end of `open` that is plain text where the marker before it is a special token: the channel's name.
    pub label: String,
    /// For example `</think>`.
    pub close: String,
}

/// Formats by the name that `--reasoning-parser` gives them, vLLM's where it has one; the markers of
/// tags. A template that has one of the markers makes a model of this format.
const TABLE: [(&str, Option<(&str, &str)>); 6] = [
    ("openai_gptoss", None),
    ("think", Some(("<think>", "</think>"))),
    ("mistral", Some(("[THINK]", "[/THINK]"))),
    ("seed_oss", Some(("<seed:think>", "</seed:think>"))),
    ("thought", Some(("<thought>", "</thought>"))),
    ("gemma4", Some(("<|channel>thought", "<channel|>"))),
];

/// The names that others give to `<think>`.
const THINK: [&str; 8] =
    ["deepseek_r1", "deepseek_v3", "glm45", "granite", "minimax_m2", "olmo3", "qwen3", "smollm3"];

impl ReasoningFormat {
    /// What a chat template writes or looks for; `None` for a model that has no reasoning.
    pub fn detect(template: &str) -> Option<Self> {
        if template.contains("<|channel|>") && template.contains("<|message|>") {
            return Some(Self::Harmony);
        }
        let mut tags = TABLE.iter().filter_map(|(_, tags)| *tags);
        let named =
            |(open, close): &(&str, &str)| template.contains(open) || template.contains(close);
        tags.find(named).map(|(open, close)| Self::tags(open, close))
    }

    /// The format of this name.
    pub fn named(name: &str) -> Option<Self> {
        let name = if THINK.contains(&name) { "think" } else { name };
        let (_, tags) = TABLE.iter().find(|(known, _)| *known == name)?;
        Some(tags.map_or(Self::Harmony, |(open, close)| Self::tags(open, close)))
    }

    /// All names.
    pub fn names() -> Vec<&'static str> {
        TABLE.iter().map(|(name, _)| *name).chain(THINK).collect()
    }

    /// Its name; `think` for all that others call it.
    pub fn name(&self) -> &'static str {
        let fits = |tags: Option<(&str, &str)>| match (self, tags) {
            (Self::Harmony, tags) => tags.is_none(),
            (Self::Tags(own), Some((open, _))) => own.open == open,
            (Self::Tags(_), None) => false,
        };
        TABLE.iter().find(|(_, tags)| fits(*tags)).map_or("", |(name, _)| name)
    }

    fn tags(open: &str, close: &str) -> Self {
        let label = open.rsplit_once('>').map_or("", |(_, label)| label);
        Self::Tags(ReasoningTags { open: open.into(), label: label.into(), close: close.into() })
    }

    /// The markers; special tokens among them stay in the text that is split.
    pub fn markers(&self) -> Vec<&str> {
        match self {
            Self::Tags(tags) => vec![tags.open_marker(), &tags.close],
            Self::Harmony => HARMONY.to_vec(),
        }
    }

    /// What a rendered prompt leaves to the answer. Only its end counts: earlier turns, and texts of
    /// the request, may hold markers too.
    pub fn start_after(&self, prompt: &str) -> ReasoningStart {
        let end = prompt.trim_end();
        match self {
            Self::Tags(tags) => tags.start_after(end),
            Self::Harmony if end.ends_with("<|start|>assistant") => ReasoningStart::Unopened,
            Self::Harmony if end.ends_with("<|channel|>analysis<|message|>") => {
                ReasoningStart::Opened
            }
            Self::Harmony => ReasoningStart::Closed,
        }
    }

    /// The same of an answer that continues a message with this text.
    pub fn start_within(&self, text: &str) -> ReasoningStart {
        match self {
            Self::Tags(tags) => match text.rfind(&tags.open) {
                Some(open) if text.rfind(&tags.close).is_none_or(|close| close < open) => {
                    ReasoningStart::Opened
                }
                _ => ReasoningStart::Closed,
            },
            Self::Harmony => ReasoningStart::Closed,
        }
    }
}

impl ReasoningTags {
    /// What may be a special token of the beginning.
    pub fn open_marker(&self) -> &str {
        self.open.strip_suffix(&*self.label).unwrap_or(&self.open)
    }

    fn start_after(&self, end: &str) -> ReasoningStart {
        // Seed-OSS opens a note on its budget too where there is none.
        let end = end.strip_suffix("<seed:cot_budget_reflect>").unwrap_or(end);
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
