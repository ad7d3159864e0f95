//! Parses and prints numbers as Python does.

/// `repr` of a float: the shortest digits that read back, with an exponent from 1e16 on and below
/// 1e-4.
pub(crate) fn repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// `float(text)`; `None` if it is not a number.
pub(crate) fn parse(text: &str) -> Option<f64> {
    let text = without_underscores(text.trim_matches(crate::lexer::is_space))?;
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let is_word = matches!(unsigned.to_ascii_lowercase().as_str(), "inf" | "infinity" | "nan");
    let is_number = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned
            .bytes()
            .all(|c| c.is_ascii_digit() || matches!(c, b'.' | b'e' | b'E' | b'+' | b'-'));
    if is_word || is_number { text.parse().ok() } else { None }
}

/// `int(text, base)`; `None` if it is not a number, an error if it is too large.
pub(crate) fn parse_int(text: &str, base: u32) -> Option<Result<i128, TooLarge>> {
    let text = text.trim_matches(crate::lexer::is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    let prefixed = match lower.as_deref() {
        Some("0x") => Some(16),
        Some("0o") => Some(8),
        Some("0b") => Some(2),
        _ => None,
    };
    let radix = match prefixed {
        Some(radix) if base == 0 || base == radix => Some(radix),
        _ => None,
    };
    let digits = match radix {
        Some(_) => digits.get(2..)?,
        None => digits,
    };
    let digits = radix.and_then(|_| digits.strip_prefix('_')).unwrap_or(digits);
    let radix = radix.unwrap_or(if base == 0 { 10 } else { base });
    let digits = without_underscores(digits)?;
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    if base == 0
        && prefixed.is_none()
        && digits.starts_with('0')
        && digits.bytes().any(|c| c != b'0')
    {
        return None;
    }
    let value = i128::from_str_radix(&digits, radix);
    Some(value.map(|value| if negative { -value } else { value }).map_err(|_| TooLarge))
}

/// A number that does not fit 128 bits.
#[derive(Debug)]
pub(crate) struct TooLarge;

/// The text without underscores, which are allowed only between digits.
fn without_underscores(text: &str) -> Option<String> {
    if !text.contains('_') {
        return Some(text.to_owned());
    }
    let inner = text.split('_').enumerate();
    let count = text.matches('_').count();
    for (at, part) in inner {
        let begins = part.starts_with(|c: char| c.is_ascii_alphanumeric());
        let ends = part.ends_with(|c: char| c.is_ascii_alphanumeric());
        if (at > 0 && !begins) || (at < count && !ends) {
            return None;
        }
    }
    Some(text.replace('_', ""))
}

/// A float truncated to an integer; `None` if it is not finite or too large.
#[allow(clippy::cast_possible_truncation, reason = "checked before")]
#[allow(clippy::cast_precision_loss, reason = "the bound is a power of two")]
pub(crate) fn truncated(value: f64) -> Option<i128> {
    let bound = i128::MAX as f64;
    (value.is_finite() && value.abs() < bound).then(|| value.trunc() as i128)
}

/// `round(value, digits)`: the nearest decimal to the float's exact value, ties to even.
pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    if !value.is_finite() || digits > 308 {
        return value;
    }
    if digits >= 0 {
        // Rust prints the exact value of a float, rounded to even on ties.
        let digits = usize::try_from(digits).unwrap_or(0);
        return format!("{value:.digits$}").parse().unwrap_or(value);
    }
    let scale = 10f64.powi(digits.saturating_neg());
    if !scale.is_finite() {
        return 0.0 * value;
    }
    (value / scale).round_ties_even() * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_floats_are_spelled_as_python_spells_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e16, "1.5e+16"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (1e100, "1e+100"),
            (123456.789, "123456.789"),
        ];
        for (value, wanted) in cases {
            assert_eq!(repr(value), wanted);
        }
    }

    #[test]
    fn test_numbers_are_read_as_python_reads_them() {
        let ints = [
            ("12", 10, Some(12)),
            (" -1_0 ", 10, Some(-10)),
            ("0x1f", 16, Some(31)),
            ("1f", 16, Some(31)),
            ("0x1f", 10, None),
            ("0b11", 0, Some(3)),
            ("012", 10, Some(12)),
            ("1__0", 10, None),
            ("", 10, None),
            ("+", 10, None),
            ("zz", 36, Some(1295)),
        ];
        for (text, base, wanted) in ints {
            assert_eq!(parse_int(text, base).map(Result::unwrap), wanted, "{text} {base}");
        }
        let floats = [
            ("1.5", true),
            ("1e3", true),
            (".5", true),
            ("x", false),
            ("1e", false),
            ("inf", true),
        ];
        for (text, is_number) in floats {
            assert_eq!(parse(text).is_some(), is_number, "{text}");
        }
    }
}
