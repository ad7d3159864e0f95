//! Tests of the detokenizer's UTF-8: any cut of any bytes.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn test_any_cut_of_any_bytes_gives_the_lossy_text(
        pieces in prop::collection::vec(prop::collection::vec(byte(), 0..6), 0..12),
    ) {
        let (mut stream, mut text) = (Utf8Stream::default(), String::new());
        for piece in &pieces {
            stream.push(piece, &mut text);
        }
        stream.finish(&mut text);
        prop_assert_eq!(text, String::from_utf8_lossy(&pieces.concat()).into_owned());
    }
}

/// Bytes that often meet at the edges of UTF-8: leads, continuations, surrogates, overlong forms.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        Just(b'a'),
        Just(0x80),
        Just(0xBF),
        Just(0x9F),
        Just(0xA0),
        Just(0xC3),
        Just(0xE0),
        Just(0xED),
        Just(0xEF),
        Just(0xF0),
        Just(0xF4),
        any::<u8>(),
    ]
}

#[test]
fn test_what_a_text_ends_inside_of_is_found() {
    for (bytes, tail) in [
        (&b""[..], &b""[..]),
        (b"a\xC3", b"\xC3"),
        (b"a\xC3\xA4", b""),
        (b"\xE2\x82", b"\xE2\x82"),
        (b"\xF0\x9F\x92", b"\xF0\x9F\x92"),
        (b"\xF0\x9F\x92\xA9", b""),
        (b"\xF0\x9F\x92\xA9\xF0", b"\xF0"),
        // No character begins so.
        (b"\xED\xA0", b""),
        (b"\xC0\x80\xFF", b""),
    ] {
        assert_eq!(unfinished(bytes), tail, "{bytes:?}");
    }
}

#[test]
fn test_whole_characters_come_at_once_and_half_ones_wait() {
    let (mut stream, mut text) = (Utf8Stream::default(), String::new());
    stream.push(&[0xF0, 0x9F, 0x92], &mut text);
    assert_eq!(text, "");
    stream.push(&[0xA9, b'!'], &mut text);
    assert_eq!(text, "💩!");
    stream.push(&[0xF0, 0x9F], &mut text);
    stream.push(b"x", &mut text);
    assert_eq!(text, "💩!\u{FFFD}x");
}
