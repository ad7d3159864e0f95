//! Strings that are awkward for tokenizers.

use proptest::prelude::*;

/// A text of up to 40 awkward pieces.
pub(crate) fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(piece(), 0..40).prop_map(|pieces| pieces.concat())
}

fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        // Contractions in any case, straight and curly, with the long s.
        "['’](s|t|re|ve|m|ll|d|S|T|RE|Ve|M|lL|D|ſ|x)",
        "[a-zA-Z]{1,12}",
        " ?[a-z]{1,6}",
        "[0-9]{1,7}",
        // White space of all kinds, in runs.
        "[ ]{1,5}",
        "[ \\t\\r\\n]{1,5}",
        "(\\r\\n|\\u{85}|\\u{A0}|\\u{2003}|\\u{2028}|\\u{3000}|\\u{200B}|\\u{B}|\\u{C}){1,3}",
        "[!-/:-@\\[-`{-~]{1,4}",
        // Letters and digits of other scripts, combining marks, full-width, titlecase, modifiers.
        "[äßéÅñğřςЖяאשعम本語한ก]{1,4}",
        "[e한a][\\u{301}\\u{308}\\u{327}\\u{11A8}]{1,2}",
        "[٣४½²Ⅷ①〇９]{1,3}",
        "[ǅʰªºﬁﬆ№™Ａ]{1,3}",
        // Emoji with joiners, skin tones, flags and variation selectors.
        prop::sample::select(vec!["👩‍👩‍👧", "👍🏽", "🇫🇷", "❤️", "🙂", "🏴\u{E0067}\u{E007F}"])
            .prop_map(String::from),
        prop::sample::select(vec![
            "▁",
            "<s>",
            "<0x41>",
            "Ġ",
            "<|im_end|>",
            "\u{FEFF}",
            "\u{0}",
            "\u{FFFD}"
        ])
        .prop_map(String::from),
        any::<char>().prop_map(String::from),
    ]
}
