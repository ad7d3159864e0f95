//! Upper and lower case as Python defines them.

use crate::text::{Text, TextBuf};

/// Python's title case of a character.
pub(crate) fn titlecased(c: char) -> String {
    match c {
        'Ǆ'..='ǆ' => "ǅ".into(),
        'Ǉ'..='ǉ' => "ǈ".into(),
        'Ǌ'..='ǌ' => "ǋ".into(),
        'Ǳ'..='ǳ' => "ǲ".into(),
        '\u{10D0}'..='\u{10FF}' => c.into(),
        c => {
            let mut upper = c.to_uppercase();
            let first = upper.next().map(String::from).unwrap_or_default();
            first + &upper.flat_map(char::to_lowercase).collect::<String>()
        }
    }
}

/// What work on each character that makes a small text costs, in units for each byte.
pub(crate) const MAP_COST: usize = 32;

/// A text with its characters changed one by one; the change sees the character before.
pub(crate) fn map_chars(text: &Text, mut change: impl FnMut(Option<char>, char) -> String) -> Text {
    let mut out = TextBuf::default();
    let mut before = None;
    for (piece, source) in text.all_pieces() {
        for c in piece.chars() {
            out.push(&change(before, c), source);
            before = Some(c);
        }
    }
    out.finish()
}

pub(crate) fn capitalized(text: &Text) -> Text {
    map_chars(text, |before, c| match before {
        None => titlecased(c),
        Some(_) => c.to_lowercase().collect(),
    })
}

/// Python's `str.title`: letters after a letter are lowered, all others put in title case.
pub(crate) fn titled(text: &Text) -> Text {
    map_chars(text, |before, c| match before.is_some_and(is_cased) {
        true => c.to_lowercase().collect(),
        false => titlecased(c),
    })
}

pub(crate) fn swapped(text: &Text) -> Text {
    map_chars(text, |_, c| match (c.is_uppercase(), c.is_lowercase()) {
        (true, _) => c.to_lowercase().collect(),
        (_, true) => c.to_uppercase().collect(),
        _ => c.into(),
    })
}

pub(crate) fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}

/// `islower`, or `isupper` with `upper`.
pub(crate) fn has_case(text: &str, upper: bool) -> bool {
    let wrong = |c: char| if upper { c.is_lowercase() } else { c.is_uppercase() };
    let right = |c: char| if upper { c.is_uppercase() } else { c.is_lowercase() };
    text.chars().any(right) && !text.chars().any(wrong)
}

pub(crate) fn is_title(text: &str) -> bool {
    let (mut before, mut any) = (false, false);
    for c in text.chars() {
        if c.is_uppercase() && before || c.is_lowercase() && !before {
            return false;
        }
        before = is_cased(c);
        any |= before;
    }
    any
}

/// Digits of base ten in any script.
pub(crate) fn is_decimal(c: char) -> bool {
    let code = u32::from(c);
    let zero = DECIMAL_ZEROS.partition_point(|zero| *zero <= code);
    let zero = zero.checked_sub(1).and_then(|at| DECIMAL_ZEROS.get(at));
    zero.is_some_and(|zero| code - zero < 10) || (0x1D7CE..=0x1D7FF).contains(&code)
}

/// Python's `isdigit`: decimals, and digits that are written high, low or in circles.
pub(crate) fn is_digit(c: char) -> bool {
    is_decimal(c)
        || matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉' | '①'..='⑨' | '⑴'..='⑼'
            | '⒈'..='⒐' | '⓪' | '⓵'..='⓽' | '⓿' | '❶'..='❾' | '➀'..='➈' | '➊'..='➒'
            | '\u{1369}'..='\u{1371}' | '\u{19DA}' | '\u{1F100}'..='\u{1F10A}')
}

/// The zeros of Unicode's decimal digits (category Nd), each followed by nine others.
const DECIMAL_ZEROS: [u32; 49] = [
    0x30, 0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66,
    0xDE6, 0xE50, 0xED0, 0xF20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90,
    0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10,
    0x104A0, 0x10D30, 0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650,
    0x116C0, 0x1E140,
];
