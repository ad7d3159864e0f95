//! [7] Finds tool calls whose name stands before their arguments, in markup that a `Dialect`
//! describes. Engine thread. Arguments are passed on as JSON while they arrive: strings character by
//! character, other values of elements and keywords as soon as they are whole. Text that turns out
//! not to be a call becomes content.

use std::sync::Arc;

use super::argument::ArgumentWriter;
use super::bare_arguments::BareArguments;
use super::call::CallStep;
use super::dialect::{Body, Dialect, Elements};
use super::ids::CallIds;
use super::keywords::{KeywordScan, keyword};
use super::marks::{DISTINCT, begun_marker, earliest, floor, is_at};
use super::named_calls::NamedCalls;
use super::rules::{CallPlace, ToolRules};
use super::spec::ToolSpec;
use crate::answer_piece::Pieces;

/// The state of one choice.
#[derive(Clone, Debug)]
pub(crate) struct BlockCalls {
    dialect: &'static Dialect,
    /// Functions that the request declared.
    tools: Arc<[ToolSpec]>,
    or_json: bool,
    /// `raw` is there since a marker.
    calls: NamedCalls,
    place: Place,
    /// Whether the frame around calls is open.
    framed: bool,
    /// What has come and is not yet taken.
    text: String,
    /// The first bytes of `text` that have been searched in vain.
    seen: usize,
    keywords: KeywordScan,
    argument: ArgumentWriter,
    bare: BareArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Calls or JSON, or calls alone or text: the first character other than white space decides.
    Start,
    Content,
    /// Content to the end.
    Json,
    /// In the frame, before a call or the frame's end.
    Framed,
    Name,
    /// Before an object of JSON, perhaps in a fence.
    Fence,
    Object,
    /// Before an element or the call's end.
    Elements,
    Key,
    BeforeValue,
    Value,
    Keywords,
    Bare,
    /// After the arguments, before what closes the call.
    Closing,
}

impl BlockCalls {
    pub(crate) fn new(dialect: &'static Dialect, rules: &ToolRules, ids: CallIds) -> Self {
        let or_json = rules.place == CallPlace::OrJson;
        Self {
            dialect,
            tools: Arc::clone(&rules.tools),
            or_json,
            calls: NamedCalls::new(ids, !rules.parallel),
            place: match or_json || dialect.alone.is_some() {
                true => Place::Start,
                false => Place::Content,
            },
            framed: false,
            text: String::new(),
            seen: 0,
            keywords: KeywordScan::default(),
            argument: ArgumentWriter::default(),
            bare: BareArguments::default(),
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

    /// The answer has ended.
    pub(crate) fn finish(&mut self, out: &mut Pieces) {
        let mut held = std::mem::take(&mut self.text);
        match self.place {
            Place::Start | Place::Content => {
                let begun = begun_marker(&held, &self.openers());
                if begun >= DISTINCT {
                    held.truncate(held.len() - begun);
                    held.truncate(held.trim_end().len());
                }
                if self.calls.len() == 0 || !held.trim().is_empty() {
                    out.content(&held);
                }
            }
            // A bracket is a call that was cut if a function's name may go on so.
            Place::Name if self.dialect.alone.is_some() => {
                let begun = held.trim_start();
                if !self.tools.iter().any(|tool| tool.name.starts_with(begun)) {
                    let raw = std::mem::take(&mut self.calls.raw);
                    out.content(&(raw + &held));
                }
            }
            // The text so far, without the beginning of the marker that was to end it.
            Place::Value if self.argument.is_text() => {
                let begun = begun_marker(&held, &[self.elements().value_end]);
                held.truncate(held.len() - if begun >= DISTINCT { begun } else { 0 });
                self.argument.text(&held, self.calls.index(), out);
            }
            // Cut between the name and the arguments.
            Place::Fence | Place::Object if !self.calls.is_announced() => self.announce(out),
            Place::Elements => self.argument.end(self.calls.index(), out),
            Place::Bare => {
                let mut json = String::new();
                self.bare.finish(&mut json);
                out.arguments(self.calls.index(), &json);
            }
            _ => {}
        }
        self.place = Place::Content;
    }

    /// Takes some of the text; false if more is needed.
    fn advance(&mut self, out: &mut Pieces) -> bool {
        match self.place {
            Place::Start => self.at_start(),
            Place::Content => self.in_content(out),
            Place::Json => {
                out.content(&std::mem::take(&mut self.text));
                false
            }
            Place::Framed => self.in_frame(out),
            Place::Name => self.in_name(out),
            Place::Fence => self.at_fence(),
            Place::Object => self.in_object(out),
            Place::Elements => self.between_elements(out),
            Place::Key => self.in_key(),
            Place::BeforeValue => self.before_value(out),
            Place::Value => self.in_value(out),
            Place::Keywords => self.in_keywords(out),
            Place::Bare => self.in_bare(out),
            Place::Closing => self.in_closing(),
        }
    }

    fn at_start(&mut self) -> bool {
        self.skip_space();
        if let Some((mark, _)) = self.dialect.alone {
            if self.may_become(&[mark]) {
                return false;
            }
            if self.text.starts_with(mark) {
                self.take(mark.len());
                self.skip_space();
            }
        }
        let openers = self.openers();
        if openers.iter().any(|opener| self.text.starts_with(opener)) {
            self.place = Place::Content;
        } else if openers.iter().any(|opener| opener.starts_with(&*self.text)) {
            return false;
        } else {
            self.place = Place::Json;
        }
        true
    }

    fn in_content(&mut self, out: &mut Pieces) -> bool {
        let openers = self.openers();
        // Markers that close nothing are dropped after a call.
        let closers = if self.calls.len() > 0 { self.closers() } else { Vec::new() };
        let all = [&openers[..], &closers[..]].concat();
        let longest = all.iter().map(|marker| marker.len()).max().unwrap_or(0);
        let from = floor(&self.text, self.seen.saturating_sub(longest));
        if let Some((at, marker)) = earliest(&self.text[from..], &all) {
            let at = from + at;
            let sure = self.text[..at].trim_end().len();
            out.content(&self.text[..sure]);
            if openers.contains(&marker) {
                // With the white space before it, should it turn out to be text.
                self.calls.raw = self.text[sure..at + marker.len()].to_owned();
                self.framed = self.dialect.frame.is_some_and(|(open, _)| open == marker);
                self.place = if self.framed { Place::Framed } else { Place::Name };
            }
            self.take(at + marker.len());
            return true;
        }
        // White space is dropped if a marker follows it.
        let sure = self.text.len() - begun_marker(&self.text, &all);
        let sure = self.text[..sure].trim_end().len();
        out.content(&self.text[..sure]);
        self.take(sure);
        self.seen = self.text.len();
        false
    }

    fn in_frame(&mut self, out: &mut Pieces) -> bool {
        self.skip_space();
        let (open, close) = (self.dialect.open, self.frame_end());
        if self.text.is_empty() || self.may_become(&[open, close]) {
            return false;
        }
        if self.text.starts_with(close) {
            self.take(close.len());
            if !self.calls.raw.is_empty() {
                self.calls.raw.push_str(close);
                self.give_up(out);
            }
            self.framed = false;
            self.place = self.no_call();
        } else if !open.is_empty() && self.text.starts_with(open) {
            self.calls.raw.push_str(open);
            self.take(open.len());
            self.place = Place::Name;
        } else if self.skips_strays() && self.text.starts_with([',', ';', '[', ']']) {
            self.take(1);
        } else if open.is_empty() {
            self.place = Place::Name;
        } else {
            self.framed = false;
            self.give_up(out);
        }
        true
    }

    fn in_name(&mut self, out: &mut Pieces) -> bool {
        let end = self.dialect.name_end;
        // Where a line feed ends the name, or nothing, a tag does so.
        let found = match end {
            "" | "\n" => self.text.find(['\n', '<']).map(|at| (at, &self.text[at..] != "<")),
            end => self.text.find(end).map(|at| (at, true)),
        };
        let sure = found.map_or(self.text.len(), |(at, _)| at);
        let part =
            &self.text[..sure - if found.is_none() { begun_marker(&self.text, &[end]) } else { 0 }];
        if part.len() > MAX_NAME_BYTES || part.trim().contains(NOT_IN_NAMES) {
            self.give_up(out);
            return true;
        }
        let Some((at, is_sure)) = found else { return false };
        if !is_sure {
            return false;
        }
        let name = self.text[..at].trim().to_owned();
        let len = at + if self.text[at..].starts_with(end) { end.len() } else { 0 };
        let is_declared = self.tools.iter().any(|tool| tool.name == name);
        // Without its frame, or where that is a mere bracket, a call must be one of a function that exists.
        let is_bare = self.dialect.alone.is_some() || self.dialect.frame.is_some() && !self.framed;
        if name.is_empty() || is_bare && !is_declared {
            self.give_up(out);
            return true;
        }
        self.calls.raw.push_str(&self.text[..len]);
        self.take(len);
        self.calls.name = name;
        let place = match self.dialect.body {
            Body::Elements(_) => Place::Elements,
            Body::Keywords => Place::Keywords,
            Body::Bare => Place::Bare,
            Body::Json { .. } => Place::Fence,
        };
        if place == Place::Fence {
            self.calls.expect_object();
        } else {
            self.announce(out);
        }
        self.place = place;
        true
    }

    fn at_fence(&mut self) -> bool {
        self.skip_space();
        if self.text.is_empty() {
            return false;
        }
        if !matches!(self.dialect.body, Body::Json { fence: true }) || !self.text.starts_with('`') {
            self.place = Place::Object;
            return true;
        }
        let Some(end) = self.text[self.seen..].find('\n').map(|at| self.seen + at) else {
            self.seen = self.text.len();
            return false;
        };
        self.calls.raw.push_str(&self.text[..=end]);
        self.take(end + 1);
        self.place = Place::Object;
        true
    }

    fn in_object(&mut self, out: &mut Pieces) -> bool {
        let text = std::mem::take(&mut self.text);
        self.seen = 0;
        for (at, c) in text.char_indices() {
            let rest = &text[at + c.len_utf8()..];
            if !self.calls.is_announced() {
                self.calls.raw.push(c);
            }
            match self.calls.step(c, out) {
                CallStep::More | CallStep::Named => continue,
                CallStep::Begun => {
                    self.announce(out);
                    continue;
                }
                CallStep::Done => {
                    if !self.calls.is_announced() {
                        self.announce(out);
                    }
                    self.calls.end_object(out);
                    self.calls.end();
                    self.place = Place::Closing;
                    self.text = rest.to_owned();
                }
                CallStep::Broken if self.calls.is_announced() => {
                    self.calls.end();
                    self.place = Place::Closing;
                    self.text = text[at..].to_owned();
                }
                CallStep::Broken => {
                    self.text = rest.to_owned();
                    self.give_up(out);
                }
            }
            return true;
        }
        false
    }

    fn between_elements(&mut self, out: &mut Pieces) -> bool {
        self.skip_space();
        let (key, close, frame_end) = (self.elements().key, self.dialect.close, self.frame_end());
        if self.text.is_empty() || self.may_become(&[key, close, frame_end]) {
            return false;
        }
        if self.text.starts_with(key) {
            self.take(key.len());
            self.place = Place::Key;
        } else if self.text.starts_with(close) || is_at(&self.text, frame_end) {
            self.argument.end(self.calls.index(), out);
            self.calls.end();
            self.place = Place::Closing;
        } else {
            // Nothing else belongs here.
            self.take(self.text.chars().next().map_or(0, char::len_utf8));
        }
        true
    }

    fn in_key(&mut self) -> bool {
        let end = self.elements().key_end;
        let from = floor(&self.text, self.seen.saturating_sub(end.len()));
        let Some(at) = self.text[from..].find(end).map(|at| from + at) else {
            self.seen = self.text.len();
            return false;
        };
        let key = self.text[..at].trim().to_owned();
        self.take(at + end.len());
        let tool = self.tools.iter().find(|tool| tool.name == self.calls.name);
        self.argument.begin(key, tool.and_then(|tool| tool.parameters.as_ref()));
        self.place = Place::BeforeValue;
        true
    }

    fn before_value(&mut self, out: &mut Pieces) -> bool {
        let (mark, lines) = (self.elements().value, self.elements().lines);
        if !mark.is_empty() {
            self.skip_space();
            if self.text.is_empty() || self.may_become(&[mark]) {
                return false;
            }
            if self.text.starts_with(mark) {
                self.take(mark.len());
            }
        } else if self.text.is_empty() {
            return false;
        }
        if lines && self.text.starts_with('\n') {
            self.take(1);
        }
        self.argument.open(self.calls.index(), out);
        self.place = Place::Value;
        true
    }

    fn in_value(&mut self, out: &mut Pieces) -> bool {
        let (end, lines) = (self.elements().value_end, self.elements().lines);
        let index = self.calls.index();
        let from = floor(&self.text, self.seen.saturating_sub(end.len()));
        if let Some(at) = self.text[from..].find(end).map(|at| from + at) {
            let value = &self.text[..at];
            let value = if lines { value.strip_suffix('\n').unwrap_or(value) } else { value };
            self.argument.close(value, index, out);
            self.take(at + end.len());
            self.place = Place::Elements;
            return true;
        }
        self.seen = self.text.len();
        if self.argument.is_text() {
            let mut sure = self.text.len() - begun_marker(&self.text, &[end]);
            if lines && self.text[..sure].ends_with('\n') {
                sure -= 1;
            }
            self.argument.text(&self.text[..sure], index, out);
            self.take(sure);
        }
        false
    }

    fn in_keywords(&mut self, out: &mut Pieces) -> bool {
        let index = self.calls.index();
        let Some((at, is_last)) = self.keywords.next(&self.text, &mut self.seen) else {
            return false;
        };
        let tool = self.tools.iter().find(|tool| tool.name == self.calls.name);
        let parameters = tool.and_then(|tool| tool.parameters.as_ref());
        if let Some((key, value)) = keyword(&self.text[..at], parameters, self.argument.count()) {
            self.argument.begin(key, parameters);
            self.argument.json(&value, index, out);
        }
        self.take(at + 1);
        if is_last {
            self.argument.end(index, out);
            self.calls.end();
            self.place = Place::Framed;
        }
        true
    }

    fn in_bare(&mut self, out: &mut Pieces) -> bool {
        let text = std::mem::take(&mut self.text);
        self.seen = 0;
        let tool = self.tools.iter().find(|tool| tool.name == self.calls.name);
        let parameters = tool.and_then(|tool| tool.parameters.as_ref());
        let mut json = String::new();
        let end = self.bare.push(&text, parameters, &mut json);
        out.arguments(self.calls.index(), &json);
        let Some(end) = end else { return false };
        self.text = text[end..].to_owned();
        self.calls.end();
        self.place = Place::Closing;
        true
    }

    /// The call has been read: what closes it is dropped, also a brace too many.
    fn in_closing(&mut self) -> bool {
        let stray = |c: char| c.is_whitespace() || c == '`' || c == '}';
        let skipped = self.text.len() - self.text.trim_start_matches(stray).len();
        self.take(skipped);
        let close = self.dialect.close;
        if self.text.is_empty() || self.may_become(&[close, self.frame_end()]) {
            return false;
        }
        if self.text.starts_with(close) {
            self.take(close.len());
        }
        self.place = if self.framed { Place::Framed } else { Place::Content };
        true
    }

    /// What is being read is a call.
    fn announce(&mut self, out: &mut Pieces) {
        self.calls.announce(out);
        self.argument = ArgumentWriter::default();
        self.bare = BareArguments::default();
    }

    /// What has been taken since the marker is no call and becomes content.
    fn give_up(&mut self, out: &mut Pieces) {
        out.content(&std::mem::take(&mut self.calls.raw));
        self.place = self.no_call();
    }

    /// The state after text that is not a call.
    fn no_call(&self) -> Place {
        let decides = self.or_json || self.dialect.alone.is_some();
        if decides && self.calls.len() == 0 { Place::Json } else { Place::Content }
    }

    /// Whether marks of lists are dropped before a call. Before the first one they may be JSON.
    fn skips_strays(&self) -> bool {
        let may_be_text = self.dialect.alone.is_some() && !self.calls.raw.is_empty();
        self.dialect.open.is_empty() && !may_be_text
    }

    fn openers(&self) -> Vec<&'static str> {
        if self.dialect.alone.is_some() && self.calls.len() > 0 {
            return Vec::new();
        }
        let frame = self.dialect.frame.map(|(open, _)| open);
        // A mark that is a word opens no call outside of the frame.
        let open = Some(self.dialect.open).filter(|open| open.starts_with('<'));
        frame.into_iter().chain(open).collect()
    }

    fn closers(&self) -> Vec<&'static str> {
        // One character is no marker that could be dropped.
        let all = [self.dialect.close, self.frame_end()];
        let end = self.dialect.alone.map(|(_, end)| end);
        all.into_iter().chain(end).filter(|marker| marker.len() > 1).collect()
    }

    /// What ends the frame; empty without one.
    fn frame_end(&self) -> &'static str {
        self.dialect.frame.map_or("", |(_, close)| close)
    }

    fn elements(&self) -> &'static Elements {
        match &self.dialect.body {
            Body::Elements(elements) => elements,
            // Its places are reached in dialects of elements only.
            Body::Json { .. } | Body::Keywords | Body::Bare => &Elements::NONE,
        }
    }

    /// Whether the text is the beginning of a marker, and not all of it.
    fn may_become(&self, markers: &[&str]) -> bool {
        markers
            .iter()
            .any(|marker| marker.len() > self.text.len() && marker.starts_with(&*self.text))
    }

    fn skip_space(&mut self) {
        let len = self.text.len() - self.text.trim_start().len();
        if !self.calls.raw.is_empty() {
            self.calls.raw.push_str(&self.text[..len]);
        }
        self.take(len);
    }

    fn take(&mut self, len: usize) {
        if len > 0 {
            self.text.drain(..len);
            self.seen = 0;
        }
    }
}

/// OpenAI allows 64.
const MAX_NAME_BYTES: usize = 256;
/// Characters of markup and JSON.
const NOT_IN_NAMES: [char; 10] = ['{', '}', '[', ']', '<', '>', '"', '\n', '(', ' '];
