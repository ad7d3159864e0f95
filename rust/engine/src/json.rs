//! [8] Writes JSON by hand into a reused buffer: no allocation and no serialiser on the streaming path.
//! Engine thread. Its output is always valid JSON and valid UTF-8.

/// Appends `text` as the inside of a JSON string: quotes, backslashes and control characters are
/// escaped, everything else, other scripts included, stays as it is.
pub(crate) fn escape_into(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let mut start = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        let escape = ESCAPE[byte as usize];
        if escape == PLAIN {
            continue;
        }
        out.extend_from_slice(&bytes[start..i]);
        start = i + 1;
        if escape == HEX {
            out.extend_from_slice(b"\\u00");
            out.push(HEX_DIGITS[(byte >> 4) as usize]);
            out.push(HEX_DIGITS[(byte & 15) as usize]);
        } else {
            out.extend_from_slice(&[b'\\', escape]);
        }
    }
    out.extend_from_slice(&bytes[start..]);
}

/// Appends `text` as a whole JSON string, quotes included.
pub(crate) fn string_into(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escape_into(out, text);
    out.push(b'"');
}

/// Appends an integer in decimal.
pub(crate) fn integer_into(out: &mut Vec<u8>, value: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = value;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends integers as a JSON array.
pub(crate) fn integers_into(out: &mut Vec<u8>, values: impl IntoIterator<Item = u64>) {
    out.push(b'[');
    for (i, value) in values.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        integer_into(out, value);
    }
    out.push(b']');
}

/// Appends a log-probability. JSON has no infinity: what cannot be sampled reads -9999, as OpenAI's
/// own answers do.
pub(crate) fn log_prob_into(out: &mut Vec<u8>, value: f32) {
    use std::io::Write as _;
    let value = if value.is_finite() { value.max(LOWEST_LOG_PROB) } else { LOWEST_LOG_PROB };
    // `{:?}` keeps a decimal point in whole numbers and is exact; writing to a Vec cannot fail.
    let _ = write!(out, "{:?}", f64::from(value));
}

const LOWEST_LOG_PROB: f32 = -9999.0;
const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
/// Not escaped.
const PLAIN: u8 = 0;
/// Escaped by number.
const HEX: u8 = 1;
/// What each byte becomes after a backslash.
const ESCAPE: [u8; 256] = {
    let mut table = [PLAIN; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = HEX;
        byte += 1;
    }
    table[0x08] = b'b';
    table[0x09] = b't';
    table[0x0a] = b'n';
    table[0x0c] = b'f';
    table[0x0d] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_character_survives_a_json_reader() {
        let mut text: String = (0..0x250_u32).filter_map(char::from_u32).collect();
        text.push_str("\u{2028}\u{2029}\u{fffd}\u{1f600}\u{10ffff} plain \"quoted\" back\\slash");
        let mut out = Vec::new();
        string_into(&mut out, &text);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
    }

    #[test]
    fn test_numbers_survive_a_json_reader() {
        for value in [0, 1, 9, 10, 99, 100, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            integer_into(&mut out, value);
            assert_eq!(serde_json::from_slice::<u64>(&out).unwrap(), value);
        }
        for value in [0.0, -0.0, -1.0, -0.12345, -1e-12, -1234.5, f32::NEG_INFINITY, f32::NAN] {
            let mut out = Vec::new();
            log_prob_into(&mut out, value);
            let back: f64 = serde_json::from_slice(&out).unwrap();
            let want = if value.is_finite() { f64::from(value) } else { -9999.0 };
            assert_eq!(back, want);
        }
    }
}
