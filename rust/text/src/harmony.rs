//! [7] Reads an answer in the harmony format of gpt-oss: messages with a header each, whose channel
//! and receiver decide what the text is. Engine thread. The result does not depend on where the text
//! is cut.
//!
//! ```text
//! <|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>final<|message|>answer
//! <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{"key": 1}<|call|>
//! ```

use std::sync::Arc;

use crate::answer_piece::Pieces;
use crate::reasoning::ReasoningStart;
use crate::tools::{
    CallIds, CallStep, DISTINCT, HARMONY, NamedCalls, ToolFormat, ToolRules, ToolSpec,
    begun_marker, earliest,
};

/// The state of one choice.
#[derive(Clone, Debug)]
pub(crate) struct HarmonyReader {
    place: Place,
    /// What has come and is not yet taken: at most a header, or the beginning of a marker.
    text: String,
    /// The header of the message that begins, without its markers' brackets.
    header: String,
    /// Functions that may be called.
    tools: Arc<[ToolSpec]>,
    calls: NamedCalls,
    /// Messages of each kind are divided by a line feed.
    has_reasoning: bool,
    has_content: bool,
    begins: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before `<|message|>`.
    Header,
    Body(Kind),
    /// After a message, before `<|start|>`.
    Between,
}

/// What the text of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Content,
    /// A call, before its arguments.
    Call,
    Arguments,
    /// After them.
    Rest,
}

impl HarmonyReader {
    /// `rules`: of the request's tools, if it has some.
    pub(crate) fn new(start: ReasoningStart, rules: Option<&ToolRules>, id_seed: u64) -> Self {
        let none: Arc<[ToolSpec]> = Arc::new([]);
        Self {
            place: match start {
                ReasoningStart::Unopened => Place::Header,
                ReasoningStart::Opened => Place::Body(Kind::Reasoning),
                ReasoningStart::Closed => Place::Body(Kind::Content),
            },
            text: String::new(),
            header: String::new(),
            tools: rules.map_or(none, |rules| Arc::clone(&rules.tools)),
            calls: NamedCalls::new(
                CallIds::new(ToolFormat::Harmony, id_seed),
                rules.is_some_and(|rules| !rules.parallel),
            ),
            has_reasoning: false,
            has_content: false,
            begins: false,
        }
    }

    pub(crate) fn num_calls(&self) -> u32 {
        self.calls.len()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.calls.is_complete()
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Pieces) {
        self.text.push_str(text);
        while !self.calls.is_complete() && self.advance(out) {}
        if self.calls.is_complete() {
            self.text.clear();
        }
    }

    /// The answer has ended. A header, or the beginning of a marker, is no text.
    pub(crate) fn finish(&mut self, out: &mut Pieces) {
        let mut rest = std::mem::take(&mut self.text);
        let begun = begun_marker(&rest, &HARMONY);
        if begun >= DISTINCT {
            rest.truncate(rest.len() - begun);
        }
        self.take(&rest, out);
        if let Place::Body(kind) = self.place {
            self.end_message(kind, out);
        }
        self.place = Place::Between;
    }

    /// Takes some of the text; false if more is needed.
    fn advance(&mut self, out: &mut Pieces) -> bool {
        let Some((at, marker)) = earliest(&self.text, &HARMONY) else {
            let sure = self.text.len() - begun_marker(&self.text, &HARMONY);
            let text: String = self.text.drain(..sure).collect();
            self.take(&text, out);
            return false;
        };
        let text: String = self.text.drain(..at).collect();
        self.take(&text, out);
        if self.calls.is_complete() {
            return false;
        }
        self.text.drain(..marker.len());
        self.mark(marker, out);
        true
    }

    /// Text without markers.
    fn take(&mut self, text: &str, out: &mut Pieces) {
        match self.place {
            Place::Header => self.header.push_str(text),
            Place::Body(kind) => self.write(kind, text, out),
            Place::Between => {}
        }
    }

    fn mark(&mut self, marker: &str, out: &mut Pieces) {
        match (self.place, marker) {
            (Place::Header, "<|message|>") => self.begin_message(),
            // The channel's name begins a word of its own.
            (Place::Header, "<|channel|>" | "<|constrain|>") => self.header.push(' '),
            (Place::Header, "<|start|>") => self.header.clear(),
            (Place::Header, _) => {
                self.header.clear();
                self.place = Place::Between;
            }
            (Place::Body(kind), _) => {
                self.end_message(kind, out);
                // A message may begin before the last one has been ended.
                self.place = match marker {
                    "<|start|>" | "<|channel|>" => Place::Header,
                    _ => Place::Between,
                };
            }
            (Place::Between, "<|start|>" | "<|channel|>") => self.place = Place::Header,
            (Place::Between, _) => {}
        }
    }

    /// The header is whole: who speaks, the channel, `to=` and the form of the text, in any order.
    fn begin_message(&mut self) {
        let header = std::mem::take(&mut self.header);
        let mut words = header.split_whitespace();
        let receiver = words.clone().find_map(|word| word.strip_prefix("to="));
        let is_reasoning = words.any(|word| word == "analysis");
        let called = receiver.and_then(|receiver| receiver.strip_prefix("functions."));
        self.begins = true;
        self.place = Place::Body(match called {
            Some(name) if !name.is_empty() && !self.tools.is_empty() => {
                self.calls.name = name.to_owned();
                self.calls.expect_object();
                self.calls.raw.clear();
                Kind::Call
            }
            _ if is_reasoning => Kind::Reasoning,
            _ => Kind::Content,
        });
    }

    fn write(&mut self, kind: Kind, text: &str, out: &mut Pieces) {
        if text.is_empty() {
            return;
        }
        let begins = std::mem::take(&mut self.begins);
        match kind {
            Kind::Reasoning => {
                if begins && self.has_reasoning {
                    out.reasoning("\n");
                }
                self.has_reasoning = true;
                out.reasoning(text);
            }
            Kind::Content => {
                if begins && self.has_content {
                    out.content("\n");
                }
                self.has_content = true;
                out.content(text);
            }
            Kind::Call => self.write_call(text, out),
            Kind::Arguments => self.write_arguments(text, out),
            Kind::Rest => {}
        }
    }

    /// More of a call whose arguments have not begun.
    fn write_call(&mut self, text: &str, out: &mut Pieces) {
        for (at, c) in text.char_indices() {
            self.calls.raw.push(c);
            let rest = &text[at + c.len_utf8()..];
            match self.calls.step(c, out) {
                CallStep::More | CallStep::Named => {}
                CallStep::Begun => {
                    self.calls.announce(out);
                    self.place = Place::Body(Kind::Arguments);
                    return self.write_arguments(rest, out);
                }
                // No arguments, as null.
                CallStep::Done => {
                    self.calls.announce(out);
                    return self.end_call(out);
                }
                CallStep::Broken => return self.give_up(rest, out),
            }
        }
    }

    fn write_arguments(&mut self, text: &str, out: &mut Pieces) {
        for c in text.chars() {
            match self.calls.step(c, out) {
                CallStep::Done | CallStep::Broken => return self.end_call(out),
                CallStep::More | CallStep::Named | CallStep::Begun => {}
            }
        }
    }

    fn end_call(&mut self, out: &mut Pieces) {
        self.calls.end_object(out);
        self.calls.end();
        self.place = Place::Body(Kind::Rest);
    }

    /// Arguments that are no object make no call.
    fn give_up(&mut self, rest: &str, out: &mut Pieces) {
        let text = std::mem::take(&mut self.calls.raw) + rest;
        self.begins = true;
        self.place = Place::Body(Kind::Content);
        self.write(Kind::Content, &text, out);
    }

    fn end_message(&mut self, kind: Kind, out: &mut Pieces) {
        match kind {
            // A call without a text has no arguments.
            Kind::Call if self.calls.raw.trim().is_empty() => {
                self.calls.announce(out);
                self.end_call(out);
            }
            Kind::Call => self.give_up("", out),
            _ => {}
        }
    }
}
