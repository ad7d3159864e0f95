//! The character classes of the splitting patterns, as the regex library of the tokenizers crate
//! (Oniguruma) defines them: `\p{L}`, `\p{N}`, `\s` of Unicode 16, as in `crate::pattern`. The
//! standard library follows a newer version of Unicode.

use std::sync::LazyLock;

use super::unicode_tables::{LETTERS, NUMBERS, PUNCTUATION};

/// What a splitting pattern distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s` without `\r` and `\n`
    Space,
    /// `\r` and `\n`
    Newline,
    /// Everything else.
    Other,
    /// The end of the text.
    End,
}

/// The class of the character at `at`, and its length in bytes (0 at the end).
#[inline]
pub(crate) fn class_at(text: &str, at: usize) -> (Class, usize) {
    match text.as_bytes().get(at) {
        None => (Class::End, 0),
        Some(&byte) if byte < 0x80 => (ASCII[usize::from(byte)], 1),
        Some(_) => class_beyond_ascii(text, at),
    }
}

/// Apart, so that what ASCII needs is small enough to be inlined.
#[inline(never)]
fn class_beyond_ascii(text: &str, at: usize) -> (Class, usize) {
    let c = text[at..].chars().next().unwrap_or('\u{FFFD}');
    (class_of(c), c.len_utf8())
}

/// The class of a character.
pub(crate) fn class_of(c: char) -> Class {
    if c.is_ascii() {
        return ASCII[c as usize & 0x7F];
    }
    if is_space(c) {
        return Class::Space;
    }
    let code = u32::from(c) as usize;
    let block = usize::from(CLASSES.blocks[code / BLOCK]);
    match CLASSES.bits[block * (BLOCK / 4) + code % BLOCK / 4] >> (code % 4 * 2) & 3 {
        1 => Class::Letter,
        2 => Class::Number,
        _ => Class::Other,
    }
}

/// `\s` beyond ASCII; the same as the property White_Space.
fn is_space(c: char) -> bool {
    matches!(
        c,
        '\u{85}' | '\u{A0}' | '\u{1680}' | '\u{2000}'
            ..='\u{200A}' | '\u{2028}' | '\u{2029}' | '\u{202F}' | '\u{205F}' | '\u{3000}'
    )
}

/// Punctuation as the `Punctuation` pre-tokeniser defines it.
pub(crate) fn is_punctuation(c: char) -> bool {
    let code = u32::from(c);
    let next = PUNCTUATION.partition_point(|(first, _)| *first <= code);
    next.checked_sub(1).is_some_and(|at| PUNCTUATION[at].1 >= code)
}

const ASCII: [Class; 128] = ascii();

const fn ascii() -> [Class; 128] {
    let mut classes = [Class::Other; 128];
    let mut byte = 0;
    while byte < 128 {
        classes[byte as usize] = match byte {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b'\r' | b'\n' => Class::Newline,
            b' ' | b'\t' | 0x0B | 0x0C => Class::Space,
            _ => Class::Other,
        };
        byte += 1;
    }
    classes
}

/// Two bits a character in blocks of 256 characters, equal blocks stored once.
struct Classes {
    blocks: Vec<u8>,
    bits: Vec<u8>,
}

const BLOCK: usize = 256;
const BLOCKS: usize = 0x11_0000 / BLOCK;

static CLASSES: LazyLock<Classes> = LazyLock::new(|| {
    let mut all = vec![0u8; BLOCKS * BLOCK / 4];
    for (ranges, value) in [(LETTERS, 1), (NUMBERS, 2)] {
        for &(first, last) in ranges {
            for code in first as usize..=last as usize {
                all[code / 4] |= value << (code % 4 * 2);
            }
        }
    }
    let mut classes = Classes { blocks: Vec::with_capacity(BLOCKS), bits: Vec::new() };
    for block in all.chunks(BLOCK / 4) {
        let known = classes.bits.chunks(BLOCK / 4).position(|other| other == block);
        let index = known.unwrap_or_else(|| {
            classes.bits.extend_from_slice(block);
            classes.bits.len() / (BLOCK / 4) - 1
        });
        // Fewer than 256 distinct blocks: a test looks every character up.
        classes.blocks.push(u8::try_from(index).unwrap_or(0));
    }
    classes
});

#[cfg(test)]
mod tests {
    use tokenizers::utils::SysRegex;

    use super::*;

    fn all_chars() -> impl Iterator<Item = char> {
        (0..=0x10_FFFF).filter_map(char::from_u32)
    }

    /// The characters that a pattern matches, by the regex library.
    fn matched(pattern: &str) -> Vec<char> {
        let text: String = all_chars().collect();
        let regex = SysRegex::new(pattern).unwrap();
        regex.find_iter(&text).map(|(start, _)| text[start..].chars().next().unwrap()).collect()
    }

    #[test]
    fn test_every_character_has_the_class_that_the_regex_library_gives_it() {
        let of = |wanted: &[Class]| -> Vec<char> {
            all_chars().filter(|c| wanted.contains(&class_of(*c))).collect()
        };
        assert!(of(&[Class::Letter]) == matched(r"\p{L}"), "letters differ");
        assert!(of(&[Class::Number]) == matched(r"\p{N}"), "numbers differ");
        assert!(of(&[Class::Space, Class::Newline]) == matched(r"\s"), "spaces differ");
    }

    #[test]
    fn test_punctuation_is_that_of_the_library() {
        use tokenizers::pre_tokenizers::punctuation::Punctuation;
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};
        let text: String = all_chars().flat_map(|c| ['a', c]).collect();
        let mut pieces = PreTokenizedString::from(text.as_str());
        Punctuation::default().pre_tokenize(&mut pieces).unwrap();
        let pieces = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
        let single = |(piece, _, _): &(&str, _, _)| {
            piece.chars().next().filter(|_| piece.chars().count() == 1)
        };
        // A letter between two kinds of punctuation is a piece too.
        let theirs: Vec<char> = pieces.iter().filter_map(single).filter(|c| *c != 'a').collect();
        let ours: Vec<char> = all_chars().filter(|c| is_punctuation(*c)).collect();
        assert!(ours == theirs, "{} and {}", ours.len(), theirs.len());
    }

    /// Prints unicode_tables.rs but its last table.
    #[test]
    #[ignore = "makes a source file"]
    fn print_tables() {
        let mut out = String::from(
            "//! Made by `cargo test -p ingle-text print_tables -- --ignored --nocapture`: the ranges of\n\
             //! `\\p{L}` and `\\p{N}` in Oniguruma, first and last code point.\n",
        );
        for (name, what, pattern) in [("LETTERS", "p{L}", r"\p{L}"), ("NUMBERS", "p{N}", r"\p{N}")]
        {
            out.push_str(&format!(
                "\n/// `\\{what}`\n#[rustfmt::skip]\npub(crate) const {name}: &[(u32, u32)] = &["
            ));
            let mut ranges: Vec<(u32, u32)> = Vec::new();
            for c in matched(pattern).into_iter().map(u32::from) {
                match ranges.last_mut() {
                    Some((_, last)) if *last + 1 == c => *last = c,
                    _ => ranges.push((c, c)),
                }
            }
            for (index, (first, last)) in ranges.iter().enumerate() {
                out.push_str(if index % 4 == 0 { "\n    " } else { " " });
                out.push_str(&format!("(0x{first:X}, 0x{last:X}),"));
            }
            out.push_str("\n];\n");
        }
        println!("{out}");
    }
}
