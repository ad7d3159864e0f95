//! Filters for strings.

use crate::args::{Args, count};
use crate::error::{Res, fail, shortened};
use crate::filters::own;
use crate::format_spec::padded;
use crate::formatting;
use crate::interp::Interp;
use crate::lexer::is_space;
use crate::print;
use crate::str_cases as cases;
use crate::str_methods::{lines, replaced, stripped};
use crate::text::{Source, Text, TextBuf};
use crate::value::Value;

/// Units for each byte that is written as `%XX`.
const URL_COST: usize = 24;

impl Interp<'_> {
    pub(crate) fn text_filter(&mut self, name: &str, input: &Value, mut args: Args) -> Res<Value> {
        if name == "truncate" {
            return self.truncate(input, args);
        }
        if name == "indent" {
            input.defined()?;
            let Value::Str(text) = input else {
                fail!("indent wants a str, not {}", input.type_name());
            };
            return self.indent(text, args);
        }
        let text = print::text_of(input, self)?;
        let rate = if matches!(name, "capitalize" | "title") { cases::MAP_COST } else { 2 };
        self.budget.pay(text.cost().saturating_mul(rate))?;
        let done = match name {
            "upper" => text.map(str::to_uppercase),
            "lower" => text.map(str::to_lowercase),
            "capitalize" => cases::capitalized(&text),
            "title" => title(&text),
            "trim" => {
                let chars = args.optional_text("chars")?;
                stripped(&text, chars.as_ref(), (true, true), &self.budget)?
            }
            "center" => {
                let width = count(args.optional_int("width")?.unwrap_or(80));
                let missing = width.saturating_sub(text.as_str().chars().count());
                let before = missing / 2 + (missing & width & 1);
                padded(&text, (before, missing - before), ' ', self)?
            }
            "replace" => {
                let old = print::text_of(&args.required("old")?, self)?;
                let new = print::text_of(&args.required("new")?, self)?;
                let most = args.optional_int("count")?.filter(|most| *most >= 0).map(count);
                replaced(&text, &old, &new, most, &self.budget)?
            }
            "format" => {
                if !args.positional.is_empty() && !args.named.is_empty() {
                    fail!("can't handle positional and keyword arguments at the same time");
                }
                // The arguments are a tuple here, never a mapping of one value.
                return formatting::percent(&text, args.rest(), self);
            }
            "wordcount" => {
                args.end()?;
                let is_word = |c: char| c == '_' || c.is_alphanumeric();
                let words = text.as_str().split(|c: char| !is_word(c));
                return Ok(Value::int(words.filter(|word| !word.is_empty()).count()));
            }
            "urlencode" => {
                args.end()?;
                return self.url_encode(input, &text);
            }
            "striptags" => {
                args.end()?;
                return self.strip_tags(&text);
            }
            other => fail!("No filter named '{}' found.", shortened(other)),
        };
        args.end()?;
        Ok(Value::Str(done))
    }

    /// As Jinja2, which adds a line feed and takes the lines of that.
    fn indent(&mut self, text: &Text, mut args: Args) -> Res<Value> {
        let indention = match args.next("width") {
            None => own("    "),
            Some(Value::Str(text)) => text,
            Some(width) => match width.as_int() {
                Some(width) => {
                    let width = count(width);
                    self.budget.pay(width.saturating_mul(2))?;
                    own(&" ".repeat(width))
                }
                None => fail!("indent: the width must be int or str, not {}", width.type_name()),
            },
        };
        let first = args.flag("first", false);
        let blank = args.flag("blank", false);
        args.end()?;
        let whole = text.as_str();
        let count = whole.chars().filter(|c| matches!(c, '\n'..='\r' | '\u{1C}'..)).count() + 2;
        self.budget.pay(indention.cost().saturating_mul(count))?;
        self.budget.pay(text.cost().saturating_mul(2))?;
        let mut out = TextBuf::default();
        let mut put = |line: std::ops::Range<usize>, indented: bool, at: usize| {
            if at > 0 {
                out.push("\n", Source::Template);
            }
            if indented {
                out.push_text(&indention);
            }
            out.push_part(text, line);
        };
        let mut last_end = 0;
        let mut number = 0;
        for (line, end) in lines(whole) {
            let indented = if number == 0 { first } else { blank || !line.is_empty() };
            last_end = if end > line.end { end } else { 0 };
            put(line, indented, number);
            number += 1;
        }
        // The line feed that was added ends the last line, or is a line of its own.
        if number == 0 || last_end == whole.len() {
            let indented = if number == 0 { first } else { blank };
            // A carriage return and the added line feed are one end of line.
            if number == 0 || !whole.ends_with('\r') {
                put(whole.len()..whole.len(), indented, number);
            }
        }
        Ok(Value::Str(out.finish()))
    }

    fn truncate(&mut self, input: &Value, mut args: Args) -> Res<Value> {
        let length = args.optional_int("length")?.unwrap_or(255);
        let kill_words = args.flag("killwords", false);
        let end = args.optional_text("end")?.unwrap_or_else(|| own("..."));
        let leeway = args.optional_int("leeway")?.unwrap_or(5);
        args.end()?;
        let end_length = i128::try_from(end.as_str().chars().count()).unwrap_or(0);
        if length < end_length {
            fail!("expected length >= {end_length}, got {length}");
        }
        if leeway < 0 {
            fail!("expected leeway >= 0, got {leeway}");
        }
        let size = i128::try_from(input.len(&self.budget)?).unwrap_or(i128::MAX);
        if size <= length.saturating_add(leeway) {
            return Ok(input.clone());
        }
        let Value::Str(text) = input else {
            fail!("truncate wants a str, not {}", input.type_name());
        };
        self.budget.pay(text.cost().saturating_add(end.cost()))?;
        let whole = text.as_str();
        let kept = whole.char_indices().nth(count(length - end_length));
        let mut kept = kept.map_or(text.len(), |(at, _)| at);
        if !kill_words {
            kept = whole.get(..kept).and_then(|start| start.rfind(' ')).unwrap_or(kept);
        }
        let mut out = TextBuf::default();
        out.push_part(text, 0..kept);
        out.push_text(&end);
        Ok(Value::Str(out.finish()))
    }

    fn url_encode(&mut self, input: &Value, text: &Text) -> Res<Value> {
        let pairs = match input {
            Value::Str(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Bool(_)
            | Value::None
            | Value::Undefined(_) => {
                self.budget.pay(text.cost().saturating_mul(URL_COST))?;
                return Ok(Value::Str(text.map(|piece| quoted(piece, "/"))));
            }
            Value::Map(map) => {
                self.budget.items(map.entries.len())?;
                map.entries.clone()
            }
            other => {
                let mut pairs = Vec::new();
                for item in other.items(&self.budget)? {
                    let pair = item.items(&self.budget)?;
                    let [key, value] = pair.as_slice() else {
                        fail!("urlencode wants pairs");
                    };
                    pairs.push((key.clone(), value.clone()));
                }
                pairs
            }
        };
        let mut out = TextBuf::default();
        for (at, (key, value)) in pairs.iter().enumerate() {
            out.push(if at == 0 { "" } else { "&" }, Source::Template);
            for (part, separator) in [(key, "="), (value, "")] {
                let part = print::text_of(part, self)?;
                self.budget.pay(part.cost().saturating_mul(URL_COST))?;
                out.push_text(&part.map(|piece| quoted(piece, "").replace("%20", "+")));
                out.push(separator, Source::Template);
            }
        }
        Ok(Value::Str(out.finish()))
    }

    /// Removes comments and tags, and replaces white space with one space.
    fn strip_tags(&mut self, text: &Text) -> Res<Value> {
        self.budget.pay(text.cost().saturating_mul(4))?;
        let without = |text: &Text, open: &str, close: &str| {
            let whole = text.as_str();
            let mut out = TextBuf::default();
            let mut at = 0;
            while let Some(start) = whole.get(at..).and_then(|rest| rest.find(open)) {
                let after = at + start + open.len();
                let Some(end) = whole.get(after..).and_then(|rest| rest.find(close)) else { break };
                out.push_part(text, at..at + start);
                at = after + end + close.len();
            }
            out.push_part(text, at..text.len());
            out.finish()
        };
        let text = without(&without(text, "<!--", "-->"), "<", ">");
        let mut out = TextBuf::default();
        let words = text.as_str().split(is_space).filter(|word| !word.is_empty());
        for (at, word) in words.enumerate() {
            let start = word.as_ptr().addr() - text.as_str().as_ptr().addr();
            if at > 0 {
                out.push(" ", Source::Template);
            }
            out.push_part(&text, start..start + word.len());
        }
        let mut text = out.finish();
        for (entity, plain) in [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&#34;", "\""),
            ("&quot;", "\""),
            ("&#39;", "'"),
            ("&amp;", "&"),
        ] {
            text = replaced(&text, &own(entity), &own(plain), None, &self.budget)?;
        }
        Ok(Value::Str(text))
    }
}

/// Words begin after white space, hyphens and opening brackets.
fn title(text: &Text) -> Text {
    let begins = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    cases::map_chars(text, |before, c| match before.is_none_or(begins) {
        true => c.to_uppercase().collect(),
        false => c.to_lowercase().collect(),
    })
}

/// `urllib.parse.quote`.
fn quoted(text: &str, safe: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "_.-~".contains(c) || safe.contains(c) {
            out.push(c);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
