//! The printable alphabet of byte-level BPE (GPT-2), which maps each byte to a character. Any
//! thread.

/// The character of `byte` in a byte-level vocabulary.
///
/// Printable bytes of Latin-1 stand for themselves, the other 68 take U+0100 onwards in order.
pub(crate) fn char_of_byte(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !is_printable(*b)).count();
    u32::try_from(256 + before).ok().and_then(char::from_u32).unwrap_or('\u{FFFD}')
}

/// The bytes that a token of a byte-level vocabulary stands for; `None` if it has a character that
/// is not of the alphabet.
pub(crate) fn bytes_of_token(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of_char).collect()
}

/// The byte of the character `c`.
pub(crate) fn byte_of_char(c: char) -> Option<u8> {
    let code = u32::from(c);
    if let Ok(byte) = u8::try_from(code) {
        return is_printable(byte).then_some(byte);
    }
    // 0x00 to 0x20, 0x7F to 0xA0 and 0xAD take U+0100 to U+0143 in this order.
    let index = u8::try_from(code.checked_sub(256)?).ok()?;
    match index {
        0..=32 => Some(index),
        33..=66 => Some(index - 33 + 0x7F),
        67 => Some(0xAD),
        _ => None,
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_byte_has_one_character_and_comes_back() {
        let mut chars: Vec<char> = (0..=255).map(char_of_byte).collect();
        for byte in 0..=255 {
            assert_eq!(byte_of_char(char_of_byte(byte)), Some(byte));
        }
        chars.sort_unstable();
        chars.dedup();
        assert_eq!(chars.len(), 256);
        assert_eq!(char_of_byte(b' '), 'Ġ');
        assert_eq!(byte_of_char('\u{144}'), None);
        assert_eq!(byte_of_char('\u{A0}'), None);
        assert_eq!(bytes_of_token("Ġhé"), Some(vec![b' ', b'h', 0xE9]));
        assert_eq!(bytes_of_token("▁"), None);
    }
}
