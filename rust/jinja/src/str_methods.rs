//! The methods of strings. Results keep the origin of each character.

use std::ops::Range;

use crate::args::{Args, count};
use crate::budget::Budget;
use crate::error::{Res, fail};
use crate::format_spec::padded;
use crate::formatting;
use crate::interp::Interp;
use crate::lexer::is_space;
use crate::print::is_printable;
use crate::str_cases as cases;
use crate::text::{Source, Text, TextBuf};
use crate::value::{ListKind, Value};

impl Interp<'_> {
    pub(crate) fn str_method(&mut self, text: &Text, name: &str, mut args: Args) -> Res<Value> {
        let budget = &self.budget;
        budget.pay(text.cost())?;
        let whole = text.as_str();
        let done = match name {
            "startswith" | "endswith" => return starts_or_ends(text, name, args, budget),
            "find" | "rfind" | "index" | "rindex" | "count" => {
                return found(text, name, args, budget);
            }
            "split" | "rsplit" => return split_call(text, name == "rsplit", args, budget),
            "strip" | "lstrip" | "rstrip" => {
                let chars = args.optional_text("chars")?;
                args.end()?;
                let sides = (name != "rstrip", name != "lstrip");
                return stripped(text, chars.as_ref(), sides, budget).map(Value::Str);
            }
            "format" => return formatting::braces(text, &args, self),
            "format_map" => {
                let map = args.required("mapping")?;
                args.end()?;
                let args = formatting::map_args(&map, self)?;
                return formatting::braces(text, &args, self);
            }
            "replace" => {
                let (old, new) = (args.text("old")?, args.text("new")?);
                let most = args.optional_int("count")?.filter(|count| *count >= 0).map(count);
                args.end()?;
                replaced(text, &old, &new, most, budget)?
            }
            "join" => {
                let items = args.required("iterable")?;
                args.end()?;
                return joined(text, &items, budget);
            }
            "splitlines" => {
                let keep = args.flag("keepends", false);
                args.end()?;
                let lines = lines(whole).map(|(line, end)| {
                    Value::Str(text.slice(if keep { line.start..end } else { line }))
                });
                return Value::list(paid(lines, budget)?, budget);
            }
            "partition" | "rpartition" => {
                let separator = args.text("sep")?;
                args.end()?;
                return partition(text, &separator, name == "rpartition", budget);
            }
            "removeprefix" | "removesuffix" => {
                let part = args.text("part")?;
                args.end()?;
                without(text, part.as_str(), name == "removeprefix")
            }
            "center" | "ljust" | "rjust" => return self.justified(text, name, args),
            "zfill" => return self.zero_filled(text, args),
            "expandtabs" => {
                let size = args.optional_int("tabsize")?.unwrap_or(8);
                args.end()?;
                expanded(text, count(size), budget)?
            }
            "encode" | "translate" => fail!("str.{name} is not supported in templates"),
            _ => {
                args.end()?;
                let rate = match name {
                    "capitalize" | "title" | "swapcase" | "isprintable" => cases::MAP_COST,
                    _ => 4,
                };
                budget.pay(text.cost().saturating_mul(rate))?;
                return Ok(plain(text, name));
            }
        };
        Ok(Value::Str(done))
    }

    fn justified(&mut self, text: &Text, name: &str, mut args: Args) -> Res<Value> {
        let width = count(args.int("width")?);
        let fill = args.next("fillchar");
        args.end()?;
        let fill = match &fill {
            None => Some(' '),
            Some(Value::Str(fill)) => {
                let mut chars = fill.as_str().chars();
                chars.next().filter(|_| chars.next().is_none())
            }
            Some(_) => None,
        };
        let Some(fill) = fill else {
            fail!("The fill character must be exactly one character long");
        };
        let missing = width.saturating_sub(text.as_str().chars().count());
        let before = match name {
            "ljust" => 0,
            "rjust" => missing,
            _ => missing / 2 + (missing & width & 1),
        };
        padded(text, (before, missing - before), fill, self).map(Value::Str)
    }

    fn zero_filled(&mut self, text: &Text, mut args: Args) -> Res<Value> {
        let width = count(args.int("width")?);
        args.end()?;
        let missing = width.saturating_sub(text.as_str().chars().count());
        let sign = usize::from(text.as_str().starts_with(['+', '-']));
        let digits = padded(&text.slice(sign..text.len()), (missing, 0), '0', self)?;
        let mut out = TextBuf::default();
        out.push_part(text, 0..sign);
        out.push_text(&digits);
        Ok(Value::Str(out.finish()))
    }
}

/// Methods without arguments whose result is no longer than three times the text.
fn plain(text: &Text, name: &str) -> Value {
    let whole = text.as_str();
    let all = |holds: fn(char) -> bool| Value::Bool(!whole.is_empty() && whole.chars().all(holds));
    Value::Str(match name {
        "upper" => text.map(str::to_uppercase),
        "lower" | "casefold" => {
            let lower = text.map(str::to_lowercase);
            if name == "casefold" { lower.map(|piece| piece.replace('ß', "ss")) } else { lower }
        }
        "capitalize" => cases::capitalized(text),
        "title" => cases::titled(text),
        "swapcase" => cases::swapped(text),
        "isalnum" => return all(|c| c.is_alphanumeric() || cases::is_digit(c)),
        "isalpha" => return all(char::is_alphabetic),
        "isascii" => return Value::Bool(whole.is_ascii()),
        "isdecimal" => return all(cases::is_decimal),
        "isdigit" => return all(cases::is_digit),
        "isnumeric" => return all(|c| c.is_numeric() || cases::is_digit(c)),
        "isspace" => return all(is_space),
        "isprintable" => return Value::Bool(whole.chars().all(is_printable)),
        "islower" => return Value::Bool(cases::has_case(whole, false)),
        "isupper" => return Value::Bool(cases::has_case(whole, true)),
        "istitle" => return Value::Bool(cases::is_title(whole)),
        "isidentifier" => {
            let starts = whole.starts_with(|c: char| c == '_' || c.is_alphabetic());
            return Value::Bool(starts && whole.chars().all(|c| c == '_' || c.is_alphanumeric()));
        }
        _ => text.clone(),
    })
}

/// Creates a list of parts; the caller has paid for their bytes.
fn paid(parts: impl Iterator<Item = Value>, budget: &Budget) -> Res<Vec<Value>> {
    let mut items = Vec::new();
    for part in parts {
        budget.items(1)?;
        items.push(part);
    }
    Ok(items)
}

/// The bytes of `text[start:stop]`, counted in characters.
fn window(text: &Text, start: Option<i128>, stop: Option<i128>) -> Option<Range<usize>> {
    if start.is_none() && stop.is_none() {
        return Some(0..text.len());
    }
    let whole = text.as_str();
    let length = i128::try_from(whole.chars().count()).unwrap_or(i128::MAX);
    let place = |value: i128| if value < 0 { value.saturating_add(length).max(0) } else { value };
    let (start, stop) = (place(start.unwrap_or(0)), place(stop.unwrap_or(length)).min(length));
    if start > stop {
        return None;
    }
    let byte = |at: i128| {
        let found = usize::try_from(at).ok().and_then(|at| whole.char_indices().nth(at));
        found.map_or(text.len(), |(at, _)| at)
    };
    Some(byte(start)..byte(stop))
}

fn starts_or_ends(text: &Text, name: &str, mut args: Args, budget: &Budget) -> Res<Value> {
    let wanted = args.required("prefix")?;
    let (start, stop) = (args.optional_int("start")?, args.optional_int("end")?);
    args.end()?;
    let Some(range) = window(text, start, stop) else { return Ok(Value::Bool(false)) };
    let part = text.as_str().get(range).unwrap_or("");
    let wanted = match &wanted {
        Value::List(list) if list.kind == ListKind::Tuple => list.items.clone(),
        other => vec![other.clone()],
    };
    for value in wanted {
        value.defined()?;
        let Value::Str(wanted) = &value else {
            let given = value.type_name();
            fail!("{name} first arg must be str or a tuple of str, not {given}");
        };
        budget.pay(wanted.len())?;
        let matches = match name {
            "startswith" => part.starts_with(wanted.as_str()),
            _ => part.ends_with(wanted.as_str()),
        };
        if matches {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn found(text: &Text, name: &str, mut args: Args, budget: &Budget) -> Res<Value> {
    let wanted = args.text("sub")?;
    let (start, stop) = (args.optional_int("start")?, args.optional_int("end")?);
    args.end()?;
    budget.pay(wanted.len())?;
    let range = window(text, start, stop);
    let part = range.clone().and_then(|range| text.as_str().get(range));
    if name == "count" {
        return Ok(Value::int(part.map_or(0, |part| match wanted.len() {
            0 => part.chars().count() + 1,
            _ => part.matches(wanted.as_str()).count(),
        })));
    }
    let at = part.and_then(|part| match name {
        "find" | "index" => part.find(wanted.as_str()),
        _ => part.rfind(wanted.as_str()),
    });
    match (at, range) {
        (Some(at), Some(range)) => {
            let before = text.as_str().get(..range.start + at).unwrap_or("");
            Ok(Value::int(before.chars().count()))
        }
        _ if name.ends_with("index") => fail!("substring not found"),
        _ => Ok(Value::Int(-1)),
    }
}

fn split_call(text: &Text, from_end: bool, mut args: Args, budget: &Budget) -> Res<Value> {
    let separator = args.optional_text("sep")?;
    let most = args.optional_int("maxsplit")?.filter(|most| *most >= 0).map(count);
    args.end()?;
    let whole = text.as_str();
    let most = most.unwrap_or(usize::MAX);
    let ranges = match &separator {
        Some(separator) if separator.len() == 0 => fail!("empty separator"),
        Some(separator) => {
            let parts: Box<dyn Iterator<Item = &str>> = match from_end {
                true => Box::new(whole.rsplitn(most.saturating_add(1), separator.as_str())),
                false => Box::new(whole.splitn(most.saturating_add(1), separator.as_str())),
            };
            ranges_of(whole, parts, budget)?
        }
        None if from_end => words_from_end(whole, most, budget)?,
        None => words(whole, most, budget)?,
    };
    let mut parts: Vec<Value> =
        ranges.into_iter().map(|range| Value::Str(text.slice(range))).collect();
    if from_end {
        parts.reverse();
    }
    Value::list(parts, budget)
}

fn ranges_of<'t>(
    whole: &str,
    parts: impl Iterator<Item = &'t str>,
    budget: &Budget,
) -> Res<Vec<Range<usize>>> {
    let mut ranges = Vec::new();
    for part in parts {
        budget.items(1)?;
        let start = part.as_ptr().addr() - whole.as_ptr().addr();
        ranges.push(start..start + part.len());
    }
    Ok(ranges)
}

fn words(whole: &str, most: usize, budget: &Budget) -> Res<Vec<Range<usize>>> {
    let mut ranges = Vec::new();
    let mut at = whole.len() - whole.trim_start_matches(is_space).len();
    while at < whole.len() {
        budget.items(1)?;
        let rest = whole.get(at..).unwrap_or("");
        if ranges.len() >= most {
            // As Python, which keeps the space at the end of the last part.
            ranges.push(at..whole.len());
            break;
        }
        let length = rest.find(is_space).unwrap_or(rest.len());
        ranges.push(at..at + length);
        let after = rest.get(length..).unwrap_or("");
        at = whole.len() - after.trim_start_matches(is_space).len();
    }
    Ok(ranges)
}

fn words_from_end(whole: &str, most: usize, budget: &Budget) -> Res<Vec<Range<usize>>> {
    let mut ranges = Vec::new();
    let mut end = whole.trim_end_matches(is_space).len();
    while end > 0 {
        budget.items(1)?;
        let rest = whole.get(..end).unwrap_or("");
        if ranges.len() >= most {
            ranges.push(0..end);
            break;
        }
        let start = rest.char_indices().rev().find(|(_, c)| is_space(*c));
        let start = start.map_or(0, |(at, c)| at + c.len_utf8());
        ranges.push(start..end);
        end = rest.get(..start).unwrap_or("").trim_end_matches(is_space).len();
    }
    Ok(ranges)
}

/// The lines of a text: without their end, and where they end with it.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (Range<usize>, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let start = at;
        let ends = |c: char| matches!(c, '\n'..='\r' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let length = rest.find(ends);
        let end = start + length.unwrap_or(rest.len());
        let after = text.get(end..).unwrap_or("");
        let separator = match after.starts_with("\r\n") {
            true => 2,
            false => length.and(after.chars().next()).map_or(0, char::len_utf8),
        };
        at = end + separator;
        Some((start..end, at))
    })
}

/// `text.strip(chars)` on the sides asked for.
pub(crate) fn stripped(
    text: &Text,
    chars: Option<&Text>,
    (left, right): (bool, bool),
    budget: &Budget,
) -> Res<Text> {
    let chars = chars.map(Text::as_str);
    if let Some(chars) = chars {
        budget.pay(text.len().saturating_mul(chars.len() / 8 + 1))?;
    }
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let mut rest = text.as_str();
    let mut start = 0;
    if left {
        let kept = rest.trim_start_matches(goes);
        start = rest.len() - kept.len();
        rest = kept;
    }
    if right {
        rest = rest.trim_end_matches(goes);
    }
    Ok(text.slice(start..start + rest.len()))
}

/// `text.replace(old, new, most)`.
pub(crate) fn replaced(
    text: &Text,
    old: &Text,
    new: &Text,
    most: Option<usize>,
    budget: &Budget,
) -> Res<Text> {
    let whole = text.as_str();
    let most = most.unwrap_or(usize::MAX);
    let count = whole.matches(old.as_str()).take(most).count();
    if count == 0 {
        return Ok(text.clone());
    }
    budget.pay(new.cost().saturating_mul(count))?;
    budget.pay(text.cost().saturating_add(count))?;
    let mut out = TextBuf::default();
    let mut at = 0;
    for (found, _) in whole.match_indices(old.as_str()).take(most) {
        out.push_part(text, at..found);
        out.push_text(new);
        at = found + old.len();
    }
    out.push_part(text, at..text.len());
    budget.pay(out.len())?;
    Ok(out.finish())
}

fn joined(separator: &Text, items: &Value, budget: &Budget) -> Res<Value> {
    let mut out = TextBuf::default();
    for (at, item) in items.items(budget)?.iter().enumerate() {
        let Value::Str(item) = item else {
            item.defined()?;
            let given = item.type_name();
            fail!("sequence item {at}: expected str instance, {given} found");
        };
        if at > 0 {
            budget.pay(separator.cost())?;
            out.push_text(separator);
        }
        budget.pay(item.cost())?;
        out.push_text(item);
    }
    budget.pay(out.len())?;
    Ok(Value::Str(out.finish()))
}

fn partition(text: &Text, separator: &Text, from_end: bool, budget: &Budget) -> Res<Value> {
    if separator.len() == 0 {
        fail!("empty separator");
    }
    let whole = text.as_str();
    let at = match from_end {
        true => whole.rfind(separator.as_str()),
        false => whole.find(separator.as_str()),
    };
    let ranges = match at {
        Some(at) => [0..at, at..at + separator.len(), at + separator.len()..text.len()],
        None if from_end => [0..0, 0..0, 0..text.len()],
        None => [0..text.len(), 0..0, 0..0],
    };
    Value::tuple(ranges.map(|range| Value::Str(text.slice(range))).to_vec(), budget)
}

/// The text without a part at its beginning or end.
fn without(text: &Text, part: &str, at_start: bool) -> Text {
    let rest = match at_start {
        true => text.as_str().strip_prefix(part).map(|_| part.len()..text.len()),
        false => text.as_str().strip_suffix(part).map(|rest| 0..rest.len()),
    };
    rest.map_or_else(|| text.clone(), |range| text.slice(range))
}

fn expanded(text: &Text, size: usize, budget: &Budget) -> Res<Text> {
    budget.pay(text.as_str().matches('\t').count().saturating_mul(size))?;
    let mut out = TextBuf::default();
    let mut column = 0;
    for (piece, source) in text.all_pieces() {
        for c in piece.chars() {
            match c {
                '\t' if size > 0 => {
                    let spaces = size - column % size;
                    out.push(&" ".repeat(spaces), Source::Template);
                    column += spaces;
                }
                '\t' => {}
                c => {
                    column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                    out.push_char(c, source);
                }
            }
        }
    }
    Ok(out.finish())
}
