//! [2] Python's two ways of formatting: `'%5.1f' % x` and `'{:>5}'.format(x)`.

use std::sync::Arc;

use super::args::Args;
use super::fault::Fault;
use super::print;
use super::slices;
use super::strings;
use super::value::Value;
use super::work::Work;

/// How one value is laid out.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    /// One of `<`, `>`, `^`, `=`; none: as usual for the kind of value.
    align: Option<char>,
    /// `+` or a space before numbers that are not negative.
    sign: Option<char>,
    prefixed: bool,
    zeros: bool,
    comma: bool,
    width: usize,
    precision: Option<usize>,
}

/// `'...' % values`, which is the filter `format` too.
pub(crate) fn percent(text: &str, mut args: Args, work: &Work) -> Result<Value, Fault> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, directive)) = rest.split_once('%') {
        add(&mut out, before, work)?;
        let mut reader = Reader { rest: directive };
        let name = match reader.skip('(') {
            true => Some(reader.until(')')?),
            false => None,
        };
        let mut spec = Spec::default();
        while let Some(flag) = reader.one_of("-+ #0") {
            match flag {
                '-' => spec.align = Some('<'),
                '#' => spec.prefixed = true,
                '0' => spec.zeros = true,
                sign => spec.sign = Some(sign),
            }
        }
        spec.width = reader.number()?.unwrap_or(0);
        if reader.skip('.') {
            spec.precision = Some(reader.number()?.unwrap_or(0));
        }
        let kind = reader.next().ok_or_else(|| Fault::failed("format: it ends inside a %"))?;
        rest = reader.rest;
        if kind == '%' {
            add(&mut out, "%", work)?;
            continue;
        }
        let value = match name {
            Some(name) => named(&args, name, work)?,
            None => args.next("").ok_or_else(|| Fault::failed("format: too few values"))?,
        };
        let formatted = match kind {
            's' => laid_out(cut(&print::text_of(&value, work)?, &spec), &spec, '>', work)?,
            'r' => {
                let mut text = String::new();
                print::repr_into(&value, &mut text, work)?;
                laid_out(cut(&text, &spec), &spec, '>', work)?
            }
            kind => number(&value, kind, &spec, work)?,
        };
        add(&mut out, &formatted, work)?;
    }
    add(&mut out, rest, work)?;
    if args.named.is_empty() {
        args.end()?;
    }
    Value::text(out, work)
}

/// `'...'.format(values)`.
pub(crate) fn braces(text: &str, mut args: Args, work: &Work) -> Result<Value, Fault> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, c, after)) = strings::split_at_char(rest, |c| c == '{' || c == '}') {
        add(&mut out, before, work)?;
        if after.starts_with(c) {
            add(&mut out, if c == '{' { "{" } else { "}" }, work)?;
            rest = after.get(1..).unwrap_or_default();
            continue;
        }
        if c == '}' {
            return Err(Fault::failed("format: a } without a {"));
        }
        let mut reader = Reader { rest: after };
        let field = reader.until('}')?;
        rest = reader.rest;
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (field, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = field_value(field, &mut args, work)?;
        let value = match conversion {
            "" => value,
            "s" => Value::Str(print::text_of(&value, work)?),
            "r" => {
                let mut text = String::new();
                print::repr_into(&value, &mut text, work)?;
                Value::text(text, work)?
            }
            _ => return Err(Fault::failed("format: only !s and !r are known")),
        };
        add(&mut out, &formatted(&value, spec, work)?, work)?;
    }
    add(&mut out, rest, work)?;
    Value::text(out, work)
}

fn add(out: &mut String, text: &str, work: &Work) -> Result<(), Fault> {
    work.spend(text.len())?;
    out.push_str(text);
    Ok(())
}

fn named(args: &Args, name: &str, work: &Work) -> Result<Value, Fault> {
    if let Some((_, value)) = args.named.iter().find(|(known, _)| **known == *name) {
        return Ok(value.clone());
    }
    match args.positional.as_slice() {
        [Value::Map(map)] => map.get_str(name, work)?.cloned(),
        _ => None,
    }
    .ok_or_else(|| Fault::failed("format: a value is missing"))
}

/// The value of a field such as `0`, `name`, or `name.attribute`.
fn field_value(field: &str, args: &mut Args, work: &Work) -> Result<Value, Fault> {
    let missing = || Fault::failed("format: a value is missing");
    let mut parts = field.split('.');
    let first = parts.next().unwrap_or_default();
    let mut value = match first.parse::<usize>() {
        _ if first.is_empty() => args.next("").ok_or_else(missing)?,
        Ok(index) => args.positional.get(index).cloned().ok_or_else(missing)?,
        Err(_) => named(args, first, work)?,
    };
    for part in parts {
        work.step()?;
        value = slices::item(&value, &Value::Str(part.into()), work)?;
    }
    Ok(value)
}

/// One value by a specification such as `>8.2f`.
fn formatted(value: &Value, text: &str, work: &Work) -> Result<Arc<str>, Fault> {
    if text.is_empty() {
        return print::text_of(value, work);
    }
    let mut spec = Spec::default();
    let mut reader = Reader { rest: text };
    let mut chars = text.chars();
    let (first, second) = (chars.next(), chars.next());
    if second.is_some_and(|c| "<>^=".contains(c)) {
        (spec.fill, spec.align) = (first, second);
        reader.rest = chars.as_str();
    } else {
        spec.align = reader.one_of("<>^=");
    }
    spec.sign = reader.one_of("+- ").filter(|sign| *sign != '-');
    spec.prefixed = reader.skip('#');
    spec.zeros = reader.skip('0');
    spec.width = reader.number()?.unwrap_or(0);
    spec.comma = reader.skip(',');
    if reader.skip('.') {
        spec.precision = reader.number()?;
    }
    let kind = reader.next();
    if !reader.rest.is_empty() {
        return Err(Fault::failed("format: a specification is not understood"));
    }
    match (kind, value) {
        (Some('s') | None, Value::Str(text)) => laid_out(cut(text, &spec), &spec, '<', work),
        (None, value) if value.as_float().is_some() => {
            let kind = if value.as_int().is_some() { 'd' } else { 'g' };
            number(value, kind, &spec, work)
        }
        (Some(kind), value) if kind != 's' => number(value, kind, &spec, work),
        (_, value) => {
            Err(Fault::failed(format!("format: a {} has no such layout", value.type_name())))
        }
    }
}

/// As many characters as the precision says.
fn cut<'t>(text: &'t str, spec: &Spec) -> &'t str {
    let end = spec.precision.and_then(|most| text.char_indices().nth(most));
    end.and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

fn laid_out(text: &str, spec: &Spec, usual: char, work: &Work) -> Result<Arc<str>, Fault> {
    let share = |missing: usize| match spec.align.unwrap_or(usual) {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    let fill = spec.fill.unwrap_or(' ');
    Ok(strings::pad(text, spec.width, fill, share, work)?.into())
}

fn number(value: &Value, kind: char, spec: &Spec, work: &Work) -> Result<Arc<str>, Fault> {
    let wrong = || {
        let value = value.type_name();
        Fault::failed(format!("format: {kind:?} does not fit a {value}"))
    };
    let precision = spec.precision.unwrap_or(6);
    let (negative, digits) = match kind {
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'b' => {
            let truncated = match value {
                #[allow(clippy::cast_possible_truncation, reason = "as casts saturate")]
                Value::Float(value) if "diu".contains(kind) => Some(*value as i128),
                other => other.as_int(),
            };
            let value = truncated.ok_or_else(wrong)?;
            (value < 0, integer(value.unsigned_abs(), kind, spec))
        }
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' | '%' => {
            let value = value.as_float().ok_or_else(wrong)?;
            let size = value.abs();
            let digits = match kind {
                _ if !size.is_finite() => print::float(size),
                'f' | 'F' => format!("{size:.precision$}"),
                '%' => format!("{:.precision$}%", size * 100.0),
                'e' | 'E' => exponential(size, precision),
                _ => general(size, precision.max(1)),
            };
            let upper = kind.is_ascii_uppercase();
            (value.is_sign_negative(), if upper { digits.to_uppercase() } else { digits })
        }
        'c' => return laid_out(&print::text_of(value, work)?, spec, '>', work),
        _ => return Err(Fault::failed(format!("format: {kind:?} is not supported"))),
    };
    let digits = if spec.comma { with_commas(&digits) } else { digits };
    let sign = if negative { "-".into() } else { spec.sign.map(String::from).unwrap_or_default() };
    let inner = spec.zeros && spec.align.is_none() || spec.align == Some('=');
    if !inner {
        return laid_out(&(sign + &digits), spec, '>', work);
    }
    let fill = spec.fill.unwrap_or(if spec.zeros { '0' } else { ' ' });
    let width = spec.width.saturating_sub(sign.len());
    let digits = strings::pad(&digits, width, fill, |missing| missing, work)?;
    Ok((sign + &digits).into())
}

fn integer(value: u128, kind: char, spec: &Spec) -> String {
    let (prefix, digits) = match kind {
        'x' => ("0x", format!("{value:x}")),
        'X' => ("0X", format!("{value:X}")),
        'o' => ("0o", format!("{value:o}")),
        'b' => ("0b", format!("{value:b}")),
        _ => ("", value.to_string()),
    };
    if spec.prefixed { format!("{prefix}{digits}") } else { digits }
}

fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn general(value: f64, precision: usize) -> String {
    let scientific = exponential(value, precision - 1);
    let exponent = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok());
    let exponent: i64 = exponent.unwrap_or(0);
    let shortest = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    let most = i64::try_from(precision).unwrap_or(i64::MAX);
    if value != 0.0 && !(-4..most).contains(&exponent) {
        let (digits, power) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{power}", shortest(digits));
    }
    let decimals = usize::try_from(most - 1 - exponent).unwrap_or(0);
    shortest(&format!("{value:.decimals$}"))
}

fn with_commas(digits: &str) -> String {
    let whole = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(whole);
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (at, c) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out + rest
}

/// Reads a specification from its start.
struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next();
        self.rest = chars.as_str();
        c
    }

    fn one_of(&mut self, wanted: &str) -> Option<char> {
        let c = self.rest.chars().next().filter(|c| wanted.contains(*c))?;
        self.next();
        Some(c)
    }

    fn skip(&mut self, wanted: char) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn until(&mut self, end: char) -> Result<&'t str, Fault> {
        let found = self.rest.split_once(end);
        let (inside, rest) =
            found.ok_or_else(|| Fault::failed(format!("format: a {end:?} is missing")))?;
        self.rest = rest;
        Ok(inside)
    }

    /// A width or precision.
    fn number(&mut self) -> Result<Option<usize>, Fault> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        if digits.is_empty() {
            return Ok(None);
        }
        let value = digits.parse().ok().filter(|value| *value <= MAX_WIDTH);
        match value {
            Some(value) => Ok(Some(value)),
            None => Err(Fault::failed(format!("format: a width above {MAX_WIDTH}"))),
        }
    }
}

/// The longest that a value is padded to.
const MAX_WIDTH: usize = 1000;
