//! Python's two ways of formatting: `'%5.1f' % x` and `'{:>5}'.format(x)`.

use std::sync::Arc;

use crate::args::{Args, count};
use crate::error::{Res, fail, shortened};
use crate::format_spec::{Reader, Spec, cut, formatted, laid_out, number, percent_integer};
use crate::interp::Interp;
use crate::print;
use crate::text::{Source, Text, TextBuf};
use crate::value::{ListKind, Value};

/// `'...' % values`, which is the filter `format` too; named values are a dict's.
pub(crate) fn percent(text: &Text, args: Args, interp: &mut Interp) -> Res<Value> {
    let whole = text.as_str();
    let mut values = Values::of(args, interp)?;
    let mut out = TextBuf::default();
    let mut at = 0;
    while let Some(found) = whole.get(at..).and_then(|rest| rest.find('%')) {
        add_part(&mut out, text, at..at + found, interp)?;
        let mut reader = Reader { rest: whole.get(at + found + 1..).unwrap_or("") };
        directive(&mut reader, &mut values, &mut out, interp)?;
        at = whole.len() - reader.rest.len();
    }
    add_part(&mut out, text, at..whole.len(), interp)?;
    if values.at < values.positional.len() && !values.is_mapping {
        fail!("not all arguments converted during string formatting");
    }
    interp.budget.pay(out.len())?;
    Ok(Value::Str(out.finish()))
}

/// The source of values for a `%` format.
struct Values {
    positional: Vec<Value>,
    at: usize,
    mapping: Option<Value>,
    /// Python accepts unused mappings and lists.
    is_mapping: bool,
}

impl Values {
    fn of(args: Args, interp: &Interp) -> Res<Self> {
        let Args { positional, named, .. } = args;
        if !named.is_empty() {
            let entries = named.into_iter().map(|(name, value)| (Value::text(name), value));
            let mapping = Value::map(entries.collect(), &interp.budget)?;
            return Ok(Self {
                positional: vec![mapping.clone()],
                at: 0,
                mapping: Some(mapping),
                is_mapping: true,
            });
        }
        let only = if positional.len() == 1 { positional.first().cloned() } else { None };
        let is_mapping = match &only {
            Some(Value::Map(_) | Value::Undefined(_) | Value::Range(_)) => true,
            Some(Value::List(list)) => list.kind == ListKind::List,
            _ => false,
        };
        let mapping = only.filter(|value| matches!(value, Value::Map(_)));
        Ok(Self { positional, at: 0, mapping, is_mapping })
    }

    fn next(&mut self) -> Res<Value> {
        let Some(value) = self.positional.get(self.at) else {
            fail!("not enough arguments for format string");
        };
        self.at += 1;
        Ok(value.clone())
    }

    fn named(&self, name: &str, interp: &Interp) -> Res<Value> {
        let Some(Value::Map(map)) = &self.mapping else {
            fail!("format requires a mapping");
        };
        match map.get_str(name, &interp.budget)? {
            Some(value) => Ok(value.clone()),
            None => fail!("KeyError: '{}'", shortened(name)),
        }
    }
}

/// One `%...` directive, from the character after the `%`.
fn directive(
    reader: &mut Reader,
    values: &mut Values,
    out: &mut TextBuf,
    interp: &mut Interp,
) -> Res<()> {
    interp.budget.step()?;
    let mut name = None;
    if reader.skip('(') {
        let mut depth = 1;
        let end = reader.rest.char_indices().find(|(_, c)| {
            depth += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            depth == 0
        });
        let Some((end, _)) = end else { fail!("incomplete format key") };
        name = reader.rest.get(..end);
        reader.rest = reader.rest.get(end + 1..).unwrap_or("");
    }
    let mut spec = Spec::default();
    while let Some(flag) = reader.one_of("-+ #0") {
        match flag {
            '-' => spec.align = Some('<'),
            '#' => spec.prefixed = true,
            '0' => spec.zeros = true,
            '+' => spec.sign = Some('+'),
            _ => spec.sign = spec.sign.or(Some(' ')),
        }
    }
    let star = |values: &mut Values| -> Res<i128> {
        match values.next()?.as_int() {
            Some(value) => Ok(value),
            None => fail!("* wants int"),
        }
    };
    if reader.skip('*') {
        let width = star(values)?;
        if width < 0 {
            spec.align = Some('<');
        }
        spec.width = count(width.saturating_abs());
    } else {
        spec.width = reader.number().unwrap_or(0);
    }
    if reader.skip('.') {
        let precision =
            if reader.skip('*') { count(star(values)?) } else { reader.number().unwrap_or(0) };
        spec.precision = Some(precision);
    }
    reader.one_of("hlL");
    let Some(kind) = reader.next() else { fail!("incomplete format") };
    if kind == '%' {
        interp.budget.pay(1)?;
        out.push("%", Source::Template);
        return Ok(());
    }
    let value = match name {
        Some(name) => values.named(name, interp)?,
        None => values.next()?,
    };
    let text = percent_value(&value, kind, spec, interp)?;
    interp.budget.pay(text.cost())?;
    out.push_text(&text);
    Ok(())
}

fn percent_value(value: &Value, kind: char, mut spec: Spec, interp: &mut Interp) -> Res<Text> {
    match kind {
        's' | 'r' | 'a' => {
            let text = converted(value, kind, interp)?;
            spec.zeros = false;
            laid_out(&cut(&text, spec.precision), &spec, '>', interp)
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let kind = if matches!(kind, 'i' | 'u') { 'd' } else { kind };
            let value = percent_integer(value, kind)?;
            // Here the precision is the minimum number of digits.
            let least = spec.precision.take().unwrap_or(0);
            let digits = number(&value, kind, &Spec { width: 0, ..spec.clone() }, interp)?;
            let signs = digits.as_str().find(|c: char| c.is_ascii_hexdigit()).unwrap_or(0);
            let missing = (least + signs).saturating_sub(digits.len());
            if missing == 0 {
                return number(&value, kind, &spec, interp);
            }
            interp.budget.pay(missing.saturating_mul(2))?;
            let (sign, digits) = digits.as_str().split_at(signs);
            let text = format!("{sign}{}{digits}", "0".repeat(missing));
            laid_out(&Text::new(text, Source::Template), &spec, '>', interp)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            value.defined()?;
            number(value, kind, &spec, interp)
        }
        'c' => match value {
            Value::Str(text) if text.as_str().chars().count() == 1 => {
                laid_out(text, &spec, '>', interp)
            }
            Value::Int(_) | Value::Bool(_) => number(value, 'c', &spec, interp),
            _ => fail!("%c requires int or char"),
        },
        other => fail!("unsupported format character '{other}'"),
    }
}

/// `str`, `repr` or `ascii` of a value.
fn converted(value: &Value, kind: char, interp: &Interp) -> Res<Text> {
    if kind == 's' {
        return print::text_of(value, interp);
    }
    let mut out = TextBuf::default();
    print::repr_into(value, &mut out, interp)?;
    let text = out.finish();
    if kind == 'r' || text.is_ascii() {
        return Ok(text);
    }
    interp.budget.pay(text.cost().saturating_mul(4))?;
    Ok(text.map(|piece| {
        let escape = |c: char| match u32::from(c) {
            0..=0x7F => c.to_string(),
            code @ 0x80..=0xFF => format!("\\x{code:02x}"),
            code @ 0x100..=0xFFFF => format!("\\u{code:04x}"),
            code => format!("\\U{code:08x}"),
        };
        piece.chars().map(escape).collect()
    }))
}

fn add_part(
    out: &mut TextBuf,
    text: &Text,
    range: std::ops::Range<usize>,
    interp: &Interp,
) -> Res<()> {
    interp.budget.pay(range.len())?;
    out.push_part(text, range);
    Ok(())
}

/// `'...'.format(values)`; `format_map` passes its values by name.
pub(crate) fn braces(text: &Text, args: &Args, interp: &mut Interp) -> Res<Value> {
    let mut fields = Fields { args, next: Some(0), used_numbers: false };
    let out = fields.text(text, 0..text.len(), interp, 2)?;
    interp.budget.pay(out.len())?;
    Ok(Value::Str(out.finish()))
}

/// The values of a `format` call.
struct Fields<'a> {
    args: &'a Args,
    /// The next value for a field without a name; `None` after a numbered field.
    next: Option<usize>,
    used_numbers: bool,
}

impl Fields<'_> {
    /// A text with its fields replaced; `levels` is how many more levels of nested fields are allowed.
    fn text(
        &mut self,
        text: &Text,
        range: std::ops::Range<usize>,
        interp: &mut Interp,
        levels: usize,
    ) -> Res<TextBuf> {
        let mut out = TextBuf::default();
        let mut at = range.start;
        let whole = text.as_str();
        let rest = |at: usize| whole.get(at..range.end).unwrap_or("");
        while let Some(found) = rest(at).find(['{', '}']) {
            add_part(&mut out, text, at..at + found, interp)?;
            interp.budget.step()?;
            at += found;
            let brace = if rest(at).starts_with('{') { '{' } else { '}' };
            if rest(at + 1).starts_with(brace) {
                add_part(&mut out, text, at..at + 1, interp)?;
                at += 2;
                continue;
            }
            if brace == '}' {
                fail!("Single '}}' encountered in format string");
            }
            let mut depth = 0;
            let end = rest(at).char_indices().find(|(_, c)| {
                depth += match c {
                    '{' => 1,
                    '}' => -1,
                    _ => 0,
                };
                depth == 0
            });
            let Some((length, _)) = end else { fail!("expected '}}' before end of string") };
            if levels == 0 {
                fail!("Max string recursion exceeded");
            }
            let field = self.field(text, at + 1..at + length, interp, levels)?;
            interp.budget.pay(field.cost())?;
            out.push_text(&field);
            at += length + 1;
        }
        add_part(&mut out, text, at..range.end, interp)?;
        Ok(out)
    }

    /// The text of one field, without its braces.
    fn field(
        &mut self,
        text: &Text,
        range: std::ops::Range<usize>,
        interp: &mut Interp,
        levels: usize,
    ) -> Res<Text> {
        let field = text.as_str().get(range.clone()).unwrap_or("");
        let mut in_index = false;
        let end = field.char_indices().find(|(_, c)| {
            in_index = (in_index || *c == '[') && *c != ']';
            !in_index && matches!(c, ':' | '!')
        });
        let name = field.get(..end.map_or(field.len(), |(at, _)| at)).unwrap_or("");
        let mut spec_at = range.start + name.len();
        let mut conversion = None;
        if field.get(name.len()..).is_some_and(|rest| rest.starts_with('!')) {
            conversion = field.get(name.len() + 1..).and_then(|rest| rest.chars().next());
            spec_at += 1 + conversion.map_or(0, char::len_utf8);
        }
        let spec_text = text.as_str().get(spec_at..range.end).unwrap_or("");
        if !spec_text.is_empty() && !spec_text.starts_with(':') {
            fail!("expected ':' after conversion specifier");
        }
        let mut value = self.value(name, interp)?;
        match conversion {
            None => {}
            Some(kind @ ('s' | 'r' | 'a')) => value = Value::Str(converted(&value, kind, interp)?),
            Some(other) => fail!("Unknown conversion specifier {other}"),
        }
        let spec = match spec_text.len() {
            0 => TextBuf::default(),
            _ => self.text(text, spec_at + 1..range.end, interp, levels - 1)?,
        };
        formatted(&value, spec.as_str(), interp)
    }

    /// The value of a field such as `0`, `name`, `name.attribute` or `0[key]`.
    fn value(&mut self, name: &str, interp: &mut Interp) -> Res<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let mut value = self.first(first)?;
        while !rest.is_empty() {
            interp.budget.step()?;
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                let (attribute, after) = after.split_at(end);
                let attribute: Arc<str> = attribute.into();
                value = interp.attribute(&value, &attribute)?;
                rest = after;
            } else {
                let inner = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
                let Some((index, after)) = inner else { fail!("Missing ']' in format string") };
                let index = match index.parse::<usize>() {
                    Ok(index) => Value::int(index),
                    Err(_) => Value::text(index),
                };
                value = interp.item(&value, &index)?;
                rest = after;
            }
        }
        Ok(value)
    }

    fn first(&mut self, name: &str) -> Res<Value> {
        let number = match (name.is_empty(), self.next) {
            (true, Some(next)) if !self.used_numbers => {
                self.next = Some(next + 1);
                next
            }
            (true, _) => {
                fail!("cannot switch from manual field specification to automatic field numbering")
            }
            (false, _) => match name.parse::<usize>() {
                Ok(_) if self.next.is_some_and(|next| next > 0) => {
                    fail!(
                        "cannot switch from automatic field numbering to manual field specification"
                    )
                }
                Ok(number) => {
                    self.used_numbers = true;
                    number
                }
                Err(_) => {
                    let found = self.args.named.iter().find(|(known, _)| **known == *name);
                    let Some((_, value)) = found else {
                        fail!("KeyError: '{}'", shortened(name));
                    };
                    return Ok(value.clone());
                }
            },
        };
        match self.args.positional.get(number) {
            Some(value) => Ok(value.clone()),
            None => fail!("Replacement index {number} out of range for positional args tuple"),
        }
    }
}

/// The values of `format_map`.
pub(crate) fn map_args(map: &Value, interp: &Interp) -> Res<Args> {
    let Value::Map(map) = map else { fail!("format_map() wants a mapping") };
    interp.budget.items(map.entries.len())?;
    let mut named = Vec::with_capacity(map.entries.len());
    for (key, value) in &map.entries {
        if let Value::Str(key) = key {
            named.push((key.shared(), value.clone()));
        }
    }
    Ok(Args::new(Vec::new(), named))
}
