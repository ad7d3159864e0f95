//! [7] Finds tool calls in an answer as it streams. Engine thread. Text that turns out not to be a
//! call is content: nothing that the model wrote is lost, except white space around calls.

use std::sync::Arc;

use super::ToolFormat;
use super::call::{CallReader, CallStep, Reads, is_space};
use crate::answer::{CallPlace, Pieces, ToolRules};
use crate::marker::MarkerFilter;

/// Makes ids of calls that no other request has, given a seed that no other request has.
#[derive(Clone, Debug)]
pub struct CallIds {
    state: u64,
    short: bool,
}

impl CallIds {
    /// Ids as templates of this format accept them: Mistral's take nine letters and digits only.
    pub fn new(format: ToolFormat, seed: u64) -> Self {
        let short = matches!(format, ToolFormat::Mistral | ToolFormat::MistralNamed);
        Self { state: seed, short }
    }

    fn next(&mut self) -> String {
        let (prefix, len) = if self.short { ("", 9) } else { ("call_", 24) };
        let letters = (0..len).map(|_| char::from(LETTERS[(self.random() % 62) as usize]));
        prefix.chars().chain(letters).collect()
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// The tool state of one choice.
#[derive(Clone, Debug)]
pub(crate) struct ToolParser {
    format: ToolFormat,
    /// Functions that the request declared.
    names: Arc<[String]>,
    /// At most one call.
    single: bool,
    /// Calls or JSON: the first character that is not white space tells.
    or_json: bool,
    ids: CallIds,
    opener: MarkerFilter,
    closer: MarkerFilter,
    place: Place,
    reader: CallReader,
    /// Everything since the marker, until a name is known: content, if it turns out to be no call.
    raw: String,
    num_calls: u32,
    /// The call that is being read has been told.
    told: bool,
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
    /// Before the closing marker.
    Closing,
    /// `MistralNamed`: the name, up to `[ARGS]`.
    Name,
}

impl ToolParser {
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
            _ => "</tool_call>",
        };
        Self {
            format,
            names: Arc::clone(&rules.names),
            single: !rules.parallel,
            or_json,
            ids,
            opener: MarkerFilter::new(format.markers()[0]),
            closer: MarkerFilter::new(closer),
            place,
            reader: CallReader::new(Reads::Anything),
            raw: String::new(),
            num_calls: 0,
            told: false,
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
            Place::Start | Place::Content => self.opener.flush(&mut held),
            Place::Closing | Place::Json => {}
            _ if self.told => {}
            _ => held.push_str(&std::mem::take(&mut self.raw)),
        }
        if self.num_calls == 0 || !held.trim().is_empty() {
            out.content(&held);
        }
        self.place = Place::Content;
    }

    fn step(&mut self, c: char, out: &mut Pieces) {
        match self.place {
            Place::Start => self.step_start(c, out),
            Place::Content => self.step_content(c, out),
            Place::Json => out.content(c.encode_utf8(&mut [0; 4])),
            Place::Before { in_list } => self.step_before(c, in_list, out),
            Place::Call { in_list } => self.step_call(c, in_list, out),
            Place::After => match c {
                c if is_space(c) => {}
                ',' => self.place = Place::Before { in_list: true },
                ']' => self.place = self.after_list(),
                _ => self.give_up(Some(c), out),
            },
            Place::Closing => self.step_closing(c, out),
            Place::Name => self.step_name(c, out),
        }
    }

    /// Llama's calls have no marker, or one: the answer's first character tells.
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

    /// Where text goes on that is no call.
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
        self.told = false;
        self.place = Place::Call { in_list };
    }

    fn step_call(&mut self, c: char, in_list: bool, out: &mut Pieces) {
        if !self.told {
            self.raw.push(c);
        }
        let index = self.num_calls.saturating_sub(1);
        match self.reader.step(c, index, out) {
            CallStep::More => {}
            CallStep::Named => {
                let name = self.reader.name().unwrap_or_default().to_owned();
                // Without a marker only a declared name makes a call of a JSON object.
                if self.format == ToolFormat::Llama3 && !self.names.contains(&name) {
                    return self.give_up(None, out);
                }
                self.tell(name, out);
                self.reader.show_waiting(self.num_calls - 1, out);
            }
            CallStep::Done => {
                self.reader.end(index, out);
                self.end_call(in_list);
            }
            CallStep::Broken if self.told => self.give_up(Some(c), out),
            CallStep::Broken => self.give_up(None, out),
        }
    }

    fn tell(&mut self, name: String, out: &mut Pieces) {
        out.call(self.num_calls, self.ids.next(), name);
        self.num_calls += 1;
        self.told = true;
        self.raw.clear();
    }

    fn end_call(&mut self, in_list: bool) {
        self.told = false;
        self.complete = self.single;
        self.place = match self.format {
            _ if in_list => Place::After,
            ToolFormat::Hermes | ToolFormat::SmolLm2 => Place::Closing,
            // Calls separated by semicolons, as Llama writes several.
            ToolFormat::Llama3 => Place::Closing,
            ToolFormat::Mistral | ToolFormat::MistralNamed => Place::Content,
        };
    }

    fn after_list(&self) -> Place {
        match self.format {
            ToolFormat::Hermes | ToolFormat::SmolLm2 => Place::Closing,
            _ => Place::Content,
        }
    }

    fn step_closing(&mut self, c: char, out: &mut Pieces) {
        if self.format == ToolFormat::Llama3 {
            match c {
                ';' | ',' => self.place = Place::Before { in_list: false },
                c if is_space(c) => {}
                _ => self.give_up(Some(c), out),
            }
            return;
        }
        let mut text = std::mem::take(&mut self.scratch);
        if self.closer.step(c, &mut text) {
            self.raw.clear();
            self.place = Place::Content;
        } else if text.trim_start() == "{" && self.raw.is_empty() {
            // Some models put several calls between one pair of markers.
            self.begin(false);
            self.step_call(c, false, out);
        } else if !text.is_empty() {
            self.closer.flush(&mut text);
            self.place = Place::Content;
            out.content(&text);
        }
        text.clear();
        self.scratch = text;
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
            self.tell(name.to_owned(), out);
            self.begin_arguments();
        } else if name.len() > MAX_NAME_BYTES {
            self.give_up(None, out);
        } else {
            self.scratch = name;
        }
    }

    /// The text from here on is the arguments, as if it stood in a call object.
    fn begin_arguments(&mut self) {
        self.reader = CallReader::bare();
        self.place = Place::Call { in_list: false };
    }

    /// What was read since the marker is no call: content. `c` has not been taken yet.
    fn give_up(&mut self, c: Option<char>, out: &mut Pieces) {
        let raw = std::mem::take(&mut self.raw);
        out.content(&raw);
        self.scratch.clear();
        self.place = self.no_call();
        if let Some(c) = c {
            self.step(c, out);
        }
    }
}

const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// OpenAI allows 64; an id may follow.
const MAX_NAME_BYTES: usize = 256;
