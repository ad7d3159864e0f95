//! Decodes base64 with padding, as used in tokenizer files. Any thread.

/// The bytes; `None` if the text is not base64.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let digits = &text[..text.len() - padding];
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for &byte in group {
            bits = bits << 6 | digit(byte)?;
        }
        // Two digits are one byte, three are two, four are three; the remaining bits must be zero.
        let (unused, bytes) = match group.len() {
            4 => (0, 3),
            3 => (2, 2),
            2 => (4, 1),
            _ => return None,
        };
        if bits & ((1 << unused) - 1) != 0 {
            return None;
        }
        bits >>= unused;
        out.extend((0..bytes).rev().map(|index| (bits >> (8 * index) & 0xFF) as u8));
    }
    Some(out)
}

fn digit(byte: u8) -> Option<u32> {
    Some(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_base64_is_decoded_or_refused() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("+/8A", b"\xFB\xFF\0"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes), "{text}");
        }
        for text in ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "Z===", "====", "Zg==Zg==", "Zm9v\n", "Zm-_"]
        {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
