//! The layout of one formatted value: fill, alignment, sign, width, precision, kind.

use crate::error::{Res, fail, too_large};
use crate::floats;
use crate::interp::Interp;
use crate::print;
use crate::text::{Source, Text, TextBuf};
use crate::value::Value;

/// The layout of one value.
#[derive(Debug, Default, Clone)]
pub(crate) struct Spec {
    pub(crate) fill: Option<char>,
    /// One of `<`, `>`, `^`, `=`; `None` is the default of the value's type.
    pub(crate) align: Option<char>,
    /// `+` or a space before numbers that are not negative.
    pub(crate) sign: Option<char>,
    pub(crate) prefixed: bool,
    pub(crate) zeros: bool,
    /// `,` or `_` between groups of digits.
    pub(crate) grouping: Option<char>,
    pub(crate) width: usize,
    pub(crate) precision: Option<usize>,
}

/// Reads a text from its start.
pub(crate) struct Reader<'t> {
    pub(crate) rest: &'t str,
}

impl<'t> Reader<'t> {
    pub(crate) fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next();
        self.rest = chars.as_str();
        c
    }

    pub(crate) fn one_of(&mut self, wanted: &str) -> Option<char> {
        let c = self.rest.chars().next().filter(|c| wanted.contains(*c))?;
        self.next();
        Some(c)
    }

    pub(crate) fn skip(&mut self, wanted: char) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// A width or precision. One with too many digits exceeds every budget.
    pub(crate) fn number(&mut self) -> Option<usize> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!digits.is_empty()).then(|| digits.parse().unwrap_or(usize::MAX))
    }
}

/// `format(value, spec)`.
pub(crate) fn formatted(value: &Value, text: &str, interp: &Interp) -> Res<Text> {
    if text.is_empty() {
        return print::text_of(value, interp);
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
    spec.width = reader.number().unwrap_or(0);
    spec.grouping = reader.one_of(",_");
    if spec.zeros {
        // A zero in front of the width is a fill character, whatever the alignment.
        spec.fill = spec.fill.or(Some('0'));
    }
    if reader.skip('.') {
        match reader.number() {
            Some(precision) => spec.precision = Some(precision),
            None => fail!("Format specifier missing precision"),
        }
    }
    let kind = reader.next();
    if !reader.rest.is_empty() {
        fail!("Invalid format specifier");
    }
    match value {
        Value::Str(text) if matches!(kind, None | Some('s')) => {
            if let Some(grouping) = spec.grouping {
                fail!("Cannot specify '{grouping}' with 's'.");
            }
            if spec.align == Some('=') {
                fail!("'=' alignment not allowed in string format specifier");
            }
            laid_out(&cut(text, spec.precision), &spec, '<', interp)
        }
        Value::Int(_) | Value::Bool(_) => number(value, kind.unwrap_or('d'), &spec, interp),
        Value::Float(_) => number(value, kind.unwrap_or('r'), &spec, interp),
        Value::Str(_) => match kind {
            Some(kind) => fail!("Unknown format code '{kind}' for object of type 'str'"),
            None => Ok(Text::new("", Source::Template)),
        },
        other => {
            fail!("unsupported format string passed to {}.__format__", other.type_name())
        }
    }
}

/// The text truncated to the precision.
pub(crate) fn cut(text: &Text, most: Option<usize>) -> Text {
    let end = most.and_then(|most| text.as_str().char_indices().nth(most));
    end.map_or_else(|| text.clone(), |(end, _)| text.slice(0..end))
}

/// The text padded to its width.
pub(crate) fn laid_out(text: &Text, spec: &Spec, usual: char, interp: &Interp) -> Res<Text> {
    interp.budget.pay(text.cost())?;
    let missing = spec.width.saturating_sub(text.as_str().chars().count());
    let before = match spec.align.unwrap_or(usual) {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    padded(text, (before, missing - before), spec.fill.unwrap_or(' '), interp)
}

/// The text with fill characters before and after it.
pub(crate) fn padded(
    text: &Text,
    (before, after): (usize, usize),
    fill: char,
    interp: &Interp,
) -> Res<Text> {
    if before + after == 0 {
        return Ok(text.clone());
    }
    interp.budget.pay(before.saturating_add(after).saturating_mul(2 * fill.len_utf8()))?;
    interp.budget.pay(text.cost())?;
    let fill = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    let mut out = TextBuf::default();
    out.push(&fill(before), Source::Template);
    out.push_text(text);
    out.push(&fill(after), Source::Template);
    Ok(out.finish())
}

/// A number by a kind such as `d` or `f`; `r` is the shortest that reads back.
pub(crate) fn number(value: &Value, kind: char, spec: &Spec, interp: &Interp) -> Res<Text> {
    let precision = spec.precision.unwrap_or(6);
    if precision > MAX_PRECISION {
        fail!("a precision above {MAX_PRECISION} is not supported");
    }
    let type_name = value.type_name();
    let (negative, prefix, digits) = match kind {
        'd' | 'n' | 'x' | 'X' | 'o' | 'b' if value.as_int().is_some() => {
            if spec.precision.is_some() {
                fail!("Precision not allowed in integer format specifier");
            }
            let value = value.as_int().unwrap_or(0);
            let (prefix, digits) = integer(value.unsigned_abs(), kind);
            (value < 0, if spec.prefixed { prefix } else { "" }, digits)
        }
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'n' | '%' | 'r' => {
            let Some(value) = value.as_float() else {
                fail!("must be real number, not {type_name}");
            };
            (value.is_sign_negative() && !value.is_nan(), "", float(value.abs(), kind, spec))
        }
        'c' => {
            let code = value.as_int().and_then(|code| u32::try_from(code).ok());
            let Some(c) = code.and_then(char::from_u32) else {
                fail!("%c arg not in range(0x110000)");
            };
            // A number of the request may not become a character of the template.
            let text = Text::new(c.to_string(), Source::Request);
            return laid_out(&text, spec, '>', interp);
        }
        _ => fail!("Unknown format code '{kind}' for object of type '{type_name}'"),
    };
    let sign = if negative { "-".into() } else { spec.sign.map(String::from).unwrap_or_default() };
    let head = sign + prefix;
    let inner = spec.align == Some('=') || (spec.zeros && spec.align.is_none());
    let width = spec.width.saturating_sub(head.len());
    let zeros = inner && spec.fill.is_none_or(|fill| fill == '0') && spec.zeros;
    let digits = match spec.grouping {
        Some(separator) => {
            let size = if matches!(kind, 'x' | 'X' | 'o' | 'b') { 4 } else { 3 };
            interp.budget.pay(if zeros { width.saturating_mul(4) } else { 0 })?;
            grouped(&digits, separator, size, if zeros { width } else { 0 })
        }
        None => digits,
    };
    if !inner {
        return laid_out(&Text::new(head + &digits, Source::Template), spec, '>', interp);
    }
    let fill = spec.fill.unwrap_or(if spec.zeros { '0' } else { ' ' });
    let missing = width.saturating_sub(digits.chars().count());
    let digits = padded(&Text::new(digits, Source::Template), (missing, 0), fill, interp)?;
    Ok(Text::new(head + digits.as_str(), Source::Template))
}

/// Integers of `%d` and similar kinds, which accept floats too.
pub(crate) fn percent_integer(value: &Value, kind: char) -> Res<Value> {
    match value {
        Value::Float(value) if kind == 'd' => {
            floats::truncated(*value).map(Value::Int).ok_or_else(too_large)
        }
        other => match other.as_int() {
            Some(value) => Ok(Value::Int(value)),
            None => {
                other.defined()?;
                fail!("%{kind} format: a real number is required, not {}", other.type_name())
            }
        },
    }
}

fn integer(value: u128, kind: char) -> (&'static str, String) {
    match kind {
        'x' => ("0x", format!("{value:x}")),
        'X' => ("0X", format!("{value:X}")),
        'o' => ("0o", format!("{value:o}")),
        'b' => ("0b", format!("{value:b}")),
        _ => ("", value.to_string()),
    }
}

fn float(size: f64, kind: char, spec: &Spec) -> String {
    let precision = spec.precision.unwrap_or(6);
    let digits = match kind {
        '%' if size.is_finite() => return format!("{:.precision$}%", size * 100.0),
        '%' => return floats::repr(size) + "%",
        _ if !size.is_finite() => floats::repr(size),
        'f' | 'F' => format!("{size:.precision$}"),
        'e' | 'E' => exponential(size, precision),
        'r' if spec.precision.is_none() => floats::repr(size),
        'r' => {
            let text = general(size, precision.max(1), spec.prefixed, precision.max(1) - 1);
            if text.contains(['.', 'e']) { text } else { text + ".0" }
        }
        _ => general(size, precision.max(1), spec.prefixed, precision.max(1)),
    };
    if kind.is_ascii_uppercase() { digits.to_uppercase() } else { digits }
}

fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// The kind `g`: exponents from `most` on use scientific notation.
fn general(value: f64, precision: usize, keep_zeros: bool, most: usize) -> String {
    let scientific = exponential(value, precision - 1);
    let exponent = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok());
    let exponent: i64 = exponent.unwrap_or(0);
    let shortest = |digits: &str| match digits.contains('.') && !keep_zeros {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    if value != 0.0 && !(-4..most).contains(&exponent) {
        let (digits, power) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{power}", shortest(digits));
    }
    let precision = i64::try_from(precision).unwrap_or(i64::MAX);
    let decimals = usize::try_from(precision - 1 - exponent).unwrap_or(0);
    shortest(&format!("{value:.decimals$}"))
}

/// Digits with separators, and with zeros in front up to a width.
fn grouped(digits: &str, separator: char, size: usize, width: usize) -> String {
    let whole = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(whole);
    let separated = |count: usize| count + count.saturating_sub(1) / size;
    let mut count = whole.len();
    while separated(count) + rest.len() < width {
        count += 1;
    }
    let zeros = "0".repeat(count - whole.len()) + whole;
    let mut out = String::with_capacity(separated(count) + rest.len());
    for (at, c) in zeros.chars().enumerate() {
        if at > 0 && (count - at).is_multiple_of(size) {
            out.push(separator);
        }
        out.push(c);
    }
    out + rest
}

/// More significant digits than any float has.
const MAX_PRECISION: usize = 1100;
