//! Splits text into words as the splitting patterns of known models do. The most common ones need
//! no regex engine: each character is read once, linear in the text.
//!
//! Each function below implements one pattern, alternative by alternative; the patterns are quoted
//! beside them. Property tests and a test over all characters compare them with the regex library.

use super::patterns;
use super::unicode::{Class, class_at};
use crate::TextError;
use crate::pattern::Pattern;

/// A known way to cut text into words.
#[derive(Debug)]
pub(crate) enum Splitter {
    /// GPT-2 and byte-level pre-tokenisers with `use_regex`.
    Gpt2,
    /// SmolLM, StarCoder: every digit on its own, GPT-2 between digits.
    Gpt2Digits,
    /// Llama 3 and cl100k, Qwen 2 and 3: they differ in `max_digits`.
    Llama3 {
        /// How many digits are one word.
        max_digits: usize,
    },
    /// Patterns that cut one after the other, each what the ones before it left whole.
    Patterns(Vec<Pattern>),
}

impl Splitter {
    /// The splitter of a pattern that has a function of its own.
    pub(crate) fn of_pattern(pattern: &str) -> Option<Self> {
        match pattern {
            patterns::GPT2 => Some(Self::Gpt2),
            patterns::LLAMA3 => Some(Self::Llama3 { max_digits: 3 }),
            patterns::QWEN2 => Some(Self::Llama3 { max_digits: 1 }),
            _ => None,
        }
    }

    /// The splitter of patterns that cut one after the other. `file` and `field`: where they stand.
    ///
    /// # Errors
    /// `TextError` for a pattern that is not supported.
    pub(crate) fn of_patterns(
        file: &'static str,
        field: &'static str,
        patterns: &[&str],
    ) -> Result<Self, TextError> {
        if let [pattern] = patterns
            && let Some(splitter) = Self::of_pattern(pattern)
        {
            return Ok(splitter);
        }
        let compile = |pattern: &&str| Pattern::new(file, field, pattern);
        Ok(Self::Patterns(patterns.iter().map(compile).collect::<Result<_, _>>()?))
    }

    /// Calls `word` for every word of `text` in order; together they are the text.
    ///
    /// # Errors
    /// `TextError::Encode` if a pattern is too costly for this text.
    pub(crate) fn split<'t>(
        &self,
        text: &'t str,
        mut word: impl FnMut(&'t str),
    ) -> Result<(), TextError> {
        match self {
            Self::Gpt2 => each(text, gpt2, &mut word),
            Self::Llama3 { max_digits } => {
                each(text, |text, at| llama3(text, at, *max_digits), &mut word);
            }
            Self::Gpt2Digits => {
                let mut rest = text;
                // The digits pre-tokeniser asks Rust's tables, not the regex library's.
                while let Some(at) = rest.find(char::is_numeric) {
                    each(&rest[..at], gpt2, &mut word);
                    let digit = rest[at..].chars().next().map_or(0, char::len_utf8);
                    word(&rest[at..at + digit]);
                    rest = &rest[at + digit..];
                }
                each(rest, gpt2, &mut word);
            }
            Self::Patterns(patterns) => return cut(patterns, text, &mut word),
        }
        Ok(())
    }
}

/// Cuts by the first pattern, and the pieces by the later ones.
fn cut<'t>(
    patterns: &[Pattern],
    text: &'t str,
    word: &mut dyn FnMut(&'t str),
) -> Result<(), TextError> {
    match patterns.split_first() {
        None => word(text),
        Some((pattern, later)) => pattern.pieces(text, &mut |piece, _| cut(later, piece, word))?,
    }
    Ok(())
}

#[inline]
fn each<'t>(
    text: &'t str,
    end_of_word: impl Fn(&'t str, usize) -> usize,
    word: &mut impl FnMut(&'t str),
) {
    let mut at = 0;
    while at < text.len() {
        let end = end_of_word(text, at);
        word(&text[at..end]);
        at = end;
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
#[inline]
fn gpt2(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    if bytes[at] == b'\'' {
        match bytes[at + 1..] {
            [b's' | b't' | b'm' | b'd', ..] => return at + 2,
            [b'r' | b'v', b'e', ..] | [b'l', b'l', ..] => return at + 3,
            _ => {}
        }
    }
    let start = at + usize::from(bytes[at] == b' ');
    match class_at(text, start) {
        (class @ (Class::Letter | Class::Number | Class::Other), len) => {
            end_of_run(text, start + len, class)
        }
        _ => end_of_space(text, at).end,
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|`
/// `\s*[\r\n]+|\s+(?!\S)|\s+`
#[inline]
fn llama3(text: &str, at: usize, max_digits: usize) -> usize {
    let bytes = text.as_bytes();
    if bytes[at] == b'\''
        && let Some(end) = contraction_of_any_case(bytes, at)
    {
        return end;
    }
    let (class, len) = class_at(text, at);
    match class {
        Class::Letter => return end_of_run(text, at + len, Class::Letter),
        Class::Number => {
            let mut end = at + len;
            for _ in 1..max_digits {
                match class_at(text, end) {
                    (Class::Number, len) => end += len,
                    _ => break,
                }
            }
            return end;
        }
        Class::Space | Class::Other => {
            if let (Class::Letter, first) = class_at(text, at + len) {
                return end_of_run(text, at + len + first, Class::Letter);
            }
        }
        Class::Newline | Class::End => {}
    }
    let start = at + usize::from(bytes[at] == b' ');
    if let (Class::Other, len) = class_at(text, start) {
        let end = end_of_run(text, start + len, Class::Other);
        return end_of_run(text, end, Class::Newline);
    }
    let space = end_of_space(text, at);
    space.last_newline.unwrap_or(space.end)
}

/// The end of `'s` and the like in upper or lower case. Case folding makes the long s an s.
fn contraction_of_any_case(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes[at + 1..] {
        [b's' | b'S' | b't' | b'T' | b'm' | b'M' | b'd' | b'D', ..] => Some(at + 2),
        [b'r' | b'R' | b'v' | b'V', b'e' | b'E', ..] | [b'l' | b'L', b'l' | b'L', ..] => {
            Some(at + 3)
        }
        [0xC5, 0xBF, ..] => Some(at + 3),
        _ => None,
    }
}

/// The end of the characters of one class that begin at `at`.
#[inline]
fn end_of_run(text: &str, mut at: usize, class: Class) -> usize {
    loop {
        match class_at(text, at) {
            (found, len) if found == class => at += len,
            _ => return at,
        }
    }
}

struct Space {
    /// The end of `\s+(?!\S)`, or of `\s+` where that does not match.
    end: usize,
    /// The end of `\s*[\r\n]+`.
    last_newline: Option<usize>,
}

/// Looks at the white space that begins at `at`: at least one character.
fn end_of_space(text: &str, at: usize) -> Space {
    let (mut end, mut last, mut last_newline) = (at, at, None);
    loop {
        let (class, len) = class_at(text, end);
        match class {
            Class::Space | Class::Newline => {
                last = end;
                end += len;
                if class == Class::Newline {
                    last_newline = Some(end);
                }
            }
            // Before other text the last character of several stays for the next word.
            Class::Letter | Class::Number | Class::Other if last > at => {
                return Space { end: last, last_newline };
            }
            _ => return Space { end, last_newline },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::utils::SysRegex;

    use super::*;
    use crate::words::testing::text;

    /// The words by the regex library; characters between matches would be words of their own.
    fn by_regex(regex: &SysRegex, text: &str) -> Vec<String> {
        let (mut words, mut at) = (Vec::new(), 0);
        for (start, end) in regex.find_iter(text) {
            assert_eq!(start, at, "the patterns match everything");
            words.push(text[start..end].to_string());
            at = end;
        }
        words
    }

    fn ours(splitter: &Splitter, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        splitter.split(text, |word| words.push(word.to_string())).unwrap();
        words
    }

    fn known() -> Vec<(Splitter, SysRegex)> {
        [patterns::GPT2, patterns::LLAMA3, patterns::QWEN2]
            .map(|text| (Splitter::of_pattern(text).unwrap(), SysRegex::new(text).unwrap()))
            .into()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn test_words_are_those_of_the_regex_library(text in text()) {
            for (splitter, regex) in known() {
                prop_assert_eq!(ours(&splitter, &text), by_regex(&regex, &text), "{:?}", splitter);
            }
        }
    }

    #[test]
    fn test_every_character_of_two_planes_is_cut_as_the_regex_library_does() {
        for (splitter, regex) in known() {
            for block in 0..0x20u32 {
                let chars = (block << 12..(block + 1) << 12).filter_map(char::from_u32);
                let text: String =
                    chars.map(|c| format!("a{c}'{c}e {c}{c}\n{c} 7{c}{c}{c}{c}")).collect();
                let (ours, wanted) = (ours(&splitter, &text), by_regex(&regex, &text));
                let differs = ours.iter().zip(&wanted).find(|(a, b)| a != b);
                assert_eq!(differs, None, "{splitter:?} in block {block:#x}");
                assert_eq!(ours.len(), wanted.len());
            }
        }
    }
}
