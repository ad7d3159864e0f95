//! [2] Jinja2's filters of texts. What is no text is printed first.

use std::sync::Arc;

use super::args::Args;
use super::fault::Fault;
use super::print;
use super::run::Host;
use super::strings::{self, Ends};
use super::value::Value;

fn text(host: &Host, value: &Value) -> Result<Arc<str>, Fault> {
    let text = print::text_of(value, host.work)?;
    host.work.spend(text.len())?;
    Ok(text)
}

/// A filter without arguments that makes at most three bytes of one.
fn changed(
    host: &Host,
    value: &Value,
    args: &Args,
    change: impl Fn(&str) -> String,
) -> Result<Value, Fault> {
    args.end()?;
    let text = text(host, value)?;
    host.work.spend(text.len().saturating_mul(3))?;
    Ok(Value::Str(change(&text).into()))
}

pub(crate) fn upper(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    changed(host, &value, &args, str::to_uppercase)
}

pub(crate) fn lower(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    changed(host, &value, &args, str::to_lowercase)
}

pub(crate) fn capitalize(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    changed(host, &value, &args, strings::capitalized)
}

/// Words begin behind spaces, hyphens and opening brackets only, unlike Python's.
pub(crate) fn title(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    changed(host, &value, &args, |text| {
        let mut out = String::with_capacity(text.len());
        let mut first = true;
        for c in text.chars() {
            if first {
                out.extend(c.to_uppercase());
            } else {
                out.extend(c.to_lowercase());
            }
            first = strings::is_space(c) || "-({[<".contains(c);
        }
        out
    })
}

pub(crate) fn trim(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let chars = args.optional_text("chars")?;
    args.end()?;
    let text = text(host, &value)?;
    let part = strings::strip(&text, chars.as_deref(), Ends::Both, host.work)?;
    if part.len() == text.len() {
        return Ok(Value::Str(text));
    }
    Value::text(part, host.work)
}

pub(crate) fn center(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let width = args.optional_int("width")?.unwrap_or(80);
    args.end()?;
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let share = |missing: usize| missing / 2 + (missing & width & 1);
    let text = text(host, &value)?;
    Value::text(strings::pad(&text, width, ' ', share, host.work)?, host.work)
}

pub(crate) fn replace(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let old = print::text_of(&args.required("old")?, host.work)?;
    let new = print::text_of(&args.required("new")?, host.work)?;
    let most = args.optional_int("count")?.and_then(|most| usize::try_from(most).ok());
    args.end()?;
    strings::replace(&text(host, &value)?, &old, &new, most, host.work)
}

pub(crate) fn escape(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    let text = text(host, &value)?;
    host.work.spend(text.len().saturating_mul(5))?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Value::text(out, host.work)
}

pub(crate) fn indent(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let width = args.next("width").unwrap_or(Value::Int(4));
    let (first, blank) = (args.flag("first"), args.flag("blank"));
    args.end()?;
    let indent: Arc<str> = match &width {
        Value::Str(indent) => Arc::clone(indent),
        other => {
            let spaces = other.as_int().and_then(|spaces| usize::try_from(spaces.max(0)).ok());
            let spaces = spaces.ok_or_else(|| Fault::failed("indent: the width is no number"))?;
            host.work.spend(spaces)?;
            " ".repeat(spaces).into()
        }
    };
    let text = text(host, &value)?;
    let mut out = String::new();
    // Python's splitlines has no empty line at the end, and Jinja2 adds one to keep it.
    let ended = text.ends_with('\n').then_some("");
    for (at, line) in strings::lines(&text, false).chain(ended).enumerate() {
        let indented = if at == 0 { first } else { blank || !line.is_empty() };
        host.work.spend(line.len() + 1 + if indented { indent.len() } else { 0 })?;
        out.push_str(if at == 0 { "" } else { "\n" });
        out.push_str(if indented { &indent } else { "" });
        out.push_str(line);
    }
    Value::text(out, host.work)
}

pub(crate) fn truncate(host: &Host, value: Value, mut args: Args) -> Result<Value, Fault> {
    let length = args.optional_int("length")?.unwrap_or(255);
    let killwords = args.flag("killwords");
    let end = args.optional_text("end")?.unwrap_or_else(|| "...".into());
    let leeway = args.optional_int("leeway")?.unwrap_or(5);
    args.end()?;
    let text = text(host, &value)?;
    let most = |length: i128| usize::try_from(length.max(0)).unwrap_or(usize::MAX);
    if text.chars().count() <= most(length.saturating_add(leeway)) {
        return Ok(Value::Str(text));
    }
    let kept = most(length).saturating_sub(end.chars().count());
    let cut = text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at);
    let mut part = text.get(..cut).unwrap_or_default();
    if !killwords {
        part = part.rsplit_once(' ').map_or(part, |(words, _)| words);
    }
    Value::text(format!("{part}{end}"), host.work)
}

pub(crate) fn wordcount(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    let text = text(host, &value)?;
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    Ok(words.filter(|word| !word.is_empty()).count().into())
}

pub(crate) fn urlencode(host: &Host, value: Value, args: Args) -> Result<Value, Fault> {
    args.end()?;
    if !matches!(value, Value::Str(_) | Value::Int(_) | Value::Float(_)) {
        return Err(Fault::failed("urlencode: only texts and numbers are encoded"));
    }
    let text = text(host, &value)?;
    host.work.spend(text.len().saturating_mul(3))?;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    Value::text(out, host.work)
}
