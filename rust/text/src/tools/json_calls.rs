//! [7] Finds tool calls that are objects of JSON in a streamed answer. Engine thread. Text that turns out
//! not to be a call becomes content: nothing that the model wrote is lost, except white space around calls.

use std::sync::Arc;

use super::ToolFormat;
use super::call::{CallReader, CallStep, Reads, is_space};
use super::ids::CallIds;
use super::rules::{CallPlace, ToolRules};
use super::spec::ToolSpec;
use crate::answer_piece::Pieces;
use crate::marker::MarkerFilter;

/// The tool state of one choice.
#[derive(Clone, Debug)]
pub(crate) struct JsonCalls {
    format: ToolFormat,
    /// Functions that the request declared.
    tools: Arc<[ToolSpec]>,
    /// At most one call.
    single: bool,
    /// Calls or JSON: the first character other than white space decides.
    or_json: bool,
    ids: CallIds,
    opener: MarkerFilter,
    closer: MarkerFilter,
    place: Place,
    reader: CallReader,
    /// Everything since the marker, until a name is known: content, if it turns out to be no call.
    raw: String,
    num_calls: u32,
    /// Whether the name of the current call has been sent.
    is_sent: bool,
    complete: bool,
    scratch: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Llama, or where JSON may stand in place of calls: before the first character that is not white
    /// space.
    Start,
    Content,
    /// Content to the end.
    Json,
    /// After the marker, or between the calls of a list.
    Before {
        in_list: bool,
    },
    Call {
        in_list: bool,
    },
    /// After a call of a list.
    After,
    /// Before the closing marker, or Llama's next call.
    Closing,
    /// After it.
    Between,
    /// `MistralNamed`: the name, up to `[ARGS]`.
    Name,
}

impl JsonCalls {
    pub(crate) fn new(rules: &ToolRules, ids: CallIds) -> Self {
        let format = rules.format;
        let or_json = rules.place == CallPlace::OrJson;
        let place = match format {
            ToolFormat::Llama3 => Place::Start,
            _ if or_json => Place::Start,
            _ => Place::Content,
        };
        let closer = match format {
            ToolFormat::MistralNamed => "[ARGS]",
            ToolFormat::Phi4Mini | ToolFormat::Phi4MiniSystem => "<|/tool_call|>",
            _ => "</tool_call>",
        };
        Self {
            format,
            tools: Arc::clone(&rules.tools),
            single: !rules.parallel,
            or_json,
            ids,
            opener: MarkerFilter::new(format.markers()[0]),
            closer: MarkerFilter::new(closer),
            place,
            reader: CallReader::new(Reads::Anything),
            raw: String::new(),
            num_calls: 0,
            is_sent: false,
            complete: false,
            scratch: String::new(),
        }
    }

    pub(crate) fn num_calls(&self) -> u32 {
        self.num_calls
    }

    /// Only one call is allowed and it is there.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Pieces) {
        for c in text.chars() {
            if self.complete {
                return;
            }
            self.step(c, out);
        }
    }

    /// The answer has ended.
    pub(crate) fn finish(&mut self, out: &mut Pieces) {
        let mut held = String::new();
        match self.place {
            Place::Start | Place::Content => self.opener.end(&mut held),
            Place::Between => self.closer.end(&mut held),
            Place::Closing | Place::Json => {}
            _ if self.is_sent => {}
            // Cut between the name and the arguments.
            Place::Call { .. } if self.is_cut_call() => self.announce(out),
            _ if self.is_begun_call() => {}
            _ => held.push_str(&std::mem::take(&mut self.raw)),
        }
        if self.num_calls == 0 || !held.trim().is_empty() {
            out.content(&held);
        }
        self.place = Place::Content;
    }

    /// Whether the answer ends in a call whose name is not known yet: markup, and no text.
    fn is_begun_call(&self) -> bool {
        let is_opened = self.num_calls > 0 || self.raw.starts_with(self.format.markers()[0]);
        let is_nameless = match self.place {
            Place::Call { .. } => self.reader.name().is_none(),
            place => matches!(place, Place::Before { .. } | Place::Name),
        };
        is_opened && is_nameless
    }

    /// Whether what has been read of an object can only be a call.
    fn is_cut_call(&self) -> bool {
        let is_certain = !(self.or_json && self.format == ToolFormat::Llama3);
        self.reader.name().is_some() && is_certain && self.is_declared()
    }

    fn step(&mut self, c: char, out: &mut Pieces) {
        match self.place {
            Place::Start => self.step_start(c, out),
            Place::Content => self.step_content(c, out),
            Place::Json => out.content(c.encode_utf8(&mut [0; 4])),
            Place::Before { in_list } => self.step_before(c, in_list, out),
            Place::Call { in_list } => self.step_call(c, in_list, out),
            Place::After => self.step_after(c, out),
            Place::Closing => self.step_closing(c, out),
            Place::Between => self.step_between(c, out),
            Place::Name => self.step_name(c, out),
        }
    }

    /// Llama's calls may have a marker or none: the answer's first character decides.
    fn step_start(&mut self, c: char, out: &mut Pieces) {
        // The grammar lets some through, as between all tokens of JSON.
        if self.or_json && is_space(c) && !self.opener.is_matching() {
            return;
        }
        if c == '{' && self.format == ToolFormat::Llama3 && !self.opener.is_matching() {
            self.opener.flush(&mut self.raw);
            self.begin(false);
            return self.step_call(c, false, out);
        }
        let mut text = std::mem::take(&mut self.scratch);
        if self.opener.step(c, &mut text) {
            self.open();
        } else if !text.is_empty() {
            self.place = self.no_call();
            out.content(&text);
        }
        text.clear();
        self.scratch = text;
    }

    fn step_content(&mut self, c: char, out: &mut Pieces) {
        let mut text = std::mem::take(&mut self.scratch);
        if self.opener.step(c, &mut text) {
            self.open();
        }
        out.content(&text);
        text.clear();
        self.scratch = text;
    }

    /// The marker has been read.
    fn open(&mut self) {
        self.raw.push_str(self.format.markers()[0]);
        self.place = match self.format {
            ToolFormat::MistralNamed => Place::Name,
            _ => Place::Before { in_list: false },
        };
    }

    /// The state after text that is not a call.
    fn no_call(&self) -> Place {
        if self.or_json && self.num_calls == 0 { Place::Json } else { Place::Content }
    }

    fn step_before(&mut self, c: char, in_list: bool, out: &mut Pieces) {
        match c {
            '{' => {
                self.begin(in_list);
                self.step_call(c, in_list, out);
            }
            '[' if !in_list && self.format != ToolFormat::Llama3 => {
                self.raw.push(c);
                self.place = Place::Before { in_list: true };
            }
            ']' if in_list => {
                self.raw.push(c);
                self.place = self.after_list();
            }
            c if is_space(c) => self.raw.push(c),
            _ => self.give_up(Some(c), out),
        }
    }

    fn begin(&mut self, in_list: bool) {
        self.reader = CallReader::new(match self.format {
            ToolFormat::Llama3 if self.or_json => Reads::CallsOrJson,
            ToolFormat::Llama3 => Reads::Calls,
            _ => Reads::Anything,
        });
        self.is_sent = false;
        self.place = Place::Call { in_list };
    }

    fn step_call(&mut self, c: char, in_list: bool, out: &mut Pieces) {
        if !self.is_sent {
            self.raw.push(c);
        }
        let index = self.num_calls.saturating_sub(1);
        match self.reader.step(c, index, out) {
            CallStep::More => {}
            CallStep::Named if self.is_declared() => {}
            CallStep::Begun | CallStep::Done if !self.is_sent && !self.is_declared() => {
                self.give_up(None, out);
            }
            CallStep::Begun => self.announce(out),
            CallStep::Done => {
                if !self.is_sent {
                    self.announce(out);
                }
                self.reader.end(self.num_calls - 1, out);
                self.end_call(in_list);
            }
            // A brace too few: the arguments are whole, and so is the call.
            CallStep::Broken if self.is_sent && self.reader.has_whole_arguments() => {
                self.end_call(in_list);
                if !self.complete {
                    self.step(c, out);
                }
            }
            CallStep::Broken if self.is_sent => self.give_up(Some(c), out),
            CallStep::Broken | CallStep::Named => self.give_up(None, out),
        }
    }

    /// Without a marker only a declared name makes a call of a JSON object.
    fn is_declared(&self) -> bool {
        let name = self.reader.name();
        self.format != ToolFormat::Llama3
            || name.is_some_and(|name| self.tools.iter().any(|tool| tool.name == name))
    }

    /// Emits the call's name and id: what is being read is a call.
    fn announce(&mut self, out: &mut Pieces) {
        let name = self.reader.name().unwrap_or_default().to_owned();
        out.call(self.num_calls, self.ids.next(), name);
        self.reader.show_waiting(self.num_calls, out);
        self.num_calls += 1;
        self.is_sent = true;
        self.raw.clear();
    }

    fn end_call(&mut self, in_list: bool) {
        self.is_sent = false;
        self.complete = self.single;
        self.place = if in_list { Place::After } else { self.after_list() };
    }

    fn after_list(&self) -> Place {
        match self.format {
            ToolFormat::Mistral | ToolFormat::MistralNamed | ToolFormat::Granite => Place::Between,
            _ => Place::Closing,
        }
    }

    /// After a call of a list.
    fn step_after(&mut self, c: char, out: &mut Pieces) {
        match c {
            // A brace too many closes nothing.
            '}' => {}
            c if is_space(c) => {}
            ',' => self.place = Place::Before { in_list: true },
            ']' => self.place = self.after_list(),
            '<' if self.after_list() == Place::Closing => {
                self.place = Place::Closing;
                self.step_closing(c, out);
            }
            _ => self.give_up(Some(c), out),
        }
    }

    fn step_closing(&mut self, c: char, out: &mut Pieces) {
        if self.format == ToolFormat::Llama3 {
            return self.step_closed(c, out);
        }
        let mut text = std::mem::take(&mut self.scratch);
        if self.closer.step(c, &mut text) {
            self.raw.clear();
            self.place = Place::Between;
        }
        self.replay(&text, Place::Closing, Self::step_closed, out);
        text.clear();
        self.scratch = text;
    }

    /// A character between a call and the marker that closes it, no part of the marker: another call may follow,
    /// as some models put several between one pair of markers, and as Llama writes several.
    fn step_closed(&mut self, c: char, out: &mut Pieces) {
        match c {
            '}' | ']' if self.raw.is_empty() => {}
            ',' | ';' => self.raw.push(c),
            '{' => {
                self.begin(false);
                self.step_call(c, false, out);
            }
            // Between calls it is ignored; after a character that turns out to be text it is part
            // of the text.
            c if is_space(c) => {
                if !self.raw.is_empty() {
                    self.raw.push(c);
                }
            }
            _ => self.give_up(Some(c), out),
        }
    }

    /// After all markers of a call: those that close nothing are dropped, as are braces and brackets.
    fn step_between(&mut self, c: char, out: &mut Pieces) {
        let mut text = std::mem::take(&mut self.scratch);
        if self.closer.step(c, &mut text) {
            self.raw.clear();
        }
        self.replay(&text, Place::Between, Self::step_beyond, out);
        text.clear();
        self.scratch = text;
    }

    /// The same without the closing marker. White space counts if content follows it.
    fn step_beyond(&mut self, c: char, out: &mut Pieces) {
        match c {
            '}' | ']' => self.raw.clear(),
            c if c.is_whitespace() => self.raw.push(c),
            _ => {
                self.place = Place::Content;
                for c in std::mem::take(&mut self.raw).chars().chain([c]) {
                    self.step(c, out);
                }
            }
        }
    }

    /// Hands what a closing marker has let through to `step`, as long as `place` lasts; what follows goes the usual
    /// way, with what the marker still holds.
    fn replay(
        &mut self,
        text: &str,
        place: Place,
        step: fn(&mut Self, char, &mut Pieces),
        out: &mut Pieces,
    ) {
        for c in text.chars() {
            if self.place == place { step(self, c, out) } else { self.step(c, out) }
        }
        if self.place != place && !text.is_empty() {
            let mut held = String::new();
            self.closer.flush(&mut held);
            held.chars().for_each(|c| self.step(c, out));
        }
    }

    fn step_name(&mut self, c: char, out: &mut Pieces) {
        // The older form, with a list, may come from a template that names both.
        if matches!(c, '[' | '{') && self.raw.ends_with("[TOOL_CALLS]") && self.scratch.is_empty() {
            // `[` may also begin `[ARGS]`, but not without a name before it.
            self.place = Place::Before { in_list: false };
            return self.step_before(c, false, out);
        }
        self.raw.push(c);
        let mut name = std::mem::take(&mut self.scratch);
        if self.closer.step(c, &mut name) {
            let name = std::mem::take(&mut name);
            let name = name.split("[CALL_ID]").next().unwrap_or_default().trim();
            if name.is_empty() {
                return self.give_up(None, out);
            }
            // What follows is the arguments, as if they stood in a call object.
            self.reader = CallReader::bare(name.to_owned());
            self.is_sent = false;
            self.place = Place::Call { in_list: false };
        } else if name.len() > MAX_NAME_BYTES {
            self.give_up(None, out);
        } else {
            self.scratch = name;
        }
    }

    /// The text since the marker is not a call and becomes content. `c` has not been taken yet.
    fn give_up(&mut self, c: Option<char>, out: &mut Pieces) {
        let raw = std::mem::take(&mut self.raw);
        out.content(&raw);
        // The text that it holds is in `raw` too.
        self.closer.flush(&mut self.scratch);
        self.scratch.clear();
        self.place = self.no_call();
        if let Some(c) = c {
            self.step(c, out);
        }
    }
}

/// OpenAI allows 64; an id may follow.
const MAX_NAME_BYTES: usize = 256;
