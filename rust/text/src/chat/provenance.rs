//! Keeps special tokens of the request's text apart from those that the template writes.
//!
//! The template engine joins, cuts and trims strings, and nothing in its output says where a
//! character came from. So, before rendering, every character of the request that could begin or end
//! a special token is replaced by a private-use character that occurs nowhere in the input; after
//! rendering the marks are turned back and their places remembered. A special token counts only if
//! none of its characters was marked. The text is that of a plain rendering, since a mark is one
//! character, is no white space, has no case and means nothing to JSON.
//!
//! A template may look for such characters, as Qwen's does with `content.split('</think>')`. String
//! constants that the template searches for are therefore left as they are in the request, unless
//! they could be a part of a special token. A constant that holds a special token is left only in
//! messages of the assistant. What remains different from a plain rendering is a template that looks
//! for single such characters, for texts that it puts together itself, or for a special token in
//! user text: there the text is kept and the token stays text.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::source::{Literal, literals};

/// What has to be marked for one template and tokenizer.
#[derive(Debug)]
pub(crate) struct Guard {
    special: Vec<String>,
    /// The first and last characters of special tokens.
    chars: Vec<char>,
    /// Constants of the template that are left alone everywhere.
    kept: Vec<String>,
    /// Constants of the template that are left alone in the assistant's messages.
    kept_in_answers: Vec<String>,
}

/// Which character stands for which, during one rendering.
#[derive(Debug)]
pub(crate) struct Marks {
    pairs: Vec<(char, char)>,
}

impl Guard {
    pub(crate) fn new(source: &str, special: &[String]) -> Self {
        let ends = special
            .iter()
            .flat_map(|token| token.chars().next().into_iter().chain(token.chars().last()));
        let mut chars: Vec<char> = ends.collect();
        chars.sort_unstable();
        chars.dedup();
        let mut guard = Self {
            special: special.to_vec(),
            chars,
            kept: Vec::new(),
            kept_in_answers: Vec::new(),
        };
        for literal in literals(source) {
            guard.keep(literal);
        }
        guard
    }

    /// A guard that knows only some of the special tokens: usual first and last characters are
    /// marked as well, and no constant is known to be free of special tokens.
    pub(crate) fn without_tokenizer(source: &str, special: &[String]) -> Self {
        let special: Vec<String> =
            special.iter().filter(|token| !token.is_empty()).cloned().collect();
        let mut guard = Self::new(source, &special);
        guard.chars.extend(USUAL_ENDS);
        guard.chars.sort_unstable();
        guard.chars.dedup();
        guard.kept.clear();
        let searched = literals(source).into_iter().filter(|literal| literal.searched);
        let texts = searched.map(|literal| literal.text).filter(|text| text.chars().count() > 1);
        guard.kept_in_answers = texts.take(MAX_KEPT).collect();
        guard
    }

    /// The characters that are marked.
    pub(crate) fn chars(&self) -> &[char] {
        &self.chars
    }

    fn keep(&mut self, literal: Literal) {
        // A single character is no evidence of what the template looks for.
        let short = literal.text.chars().count() < 2;
        let full = self.kept.len() + self.kept_in_answers.len() >= MAX_KEPT;
        if full || short || !literal.searched || !literal.text.contains(self.chars.as_slice()) {
            return;
        }
        if self.special.iter().any(|token| literal.text.contains(token.as_str())) {
            self.kept_in_answers.push(literal.text);
        } else if !self.special.iter().any(|token| overlap(&literal.text, token)) {
            self.kept.push(literal.text);
        }
    }

    /// Marks all strings of the template's variables, but for those of `named`, which are the model's
    /// own: the others come from the request.
    pub(crate) fn mark(
        &self,
        context: &mut Map<String, Value>,
        named: &[(String, String)],
    ) -> Marks {
        let mut free = FreeChars::default();
        context.values().for_each(|value| free.see(value));
        let pairs = self.chars.iter().map(|&c| (c, free.take())).collect();
        let marks = Marks { pairs };
        for (key, value) in context.iter_mut() {
            match (key.as_str(), value) {
                ("messages", Value::Array(messages)) => {
                    for message in messages {
                        let answer = message["role"] == "assistant";
                        self.mark_value(message, &marks, answer);
                    }
                }
                (key, _) if named.iter().any(|(name, _)| name == key) => {}
                (_, value) => self.mark_value(value, &marks, false),
            }
        }
        marks
    }

    fn mark_value(&self, value: &mut Value, marks: &Marks, answer: bool) {
        match value {
            Value::String(text) => {
                if let Some(marked) = self.mark_text(text, marks, answer) {
                    *text = marked;
                }
            }
            Value::Array(items) => {
                items.iter_mut().for_each(|item| self.mark_value(item, marks, answer));
            }
            Value::Object(map) => {
                if map.keys().any(|key| key.contains(self.chars.as_slice())) {
                    let entries = std::mem::take(map).into_iter();
                    let marked = |key: String| self.mark_text(&key, marks, answer).unwrap_or(key);
                    *map = entries.map(|(key, value)| (marked(key), value)).collect();
                }
                map.values_mut().for_each(|item| self.mark_value(item, marks, answer));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The text with its marks; `None` if there is nothing to mark.
    fn mark_text(&self, text: &str, marks: &Marks, answer: bool) -> Option<String> {
        if !text.contains(self.chars.as_slice()) {
            return None;
        }
        let kept = self.kept_bytes(text, answer);
        let mut next = kept.iter().peekable();
        let mark = |(at, c): (usize, char)| {
            while next.next_if(|(_, end)| *end <= at).is_some() {}
            let is_kept = next.peek().is_some_and(|(start, _)| *start <= at);
            marks.mark_of(c).filter(|_| !is_kept).unwrap_or(c)
        };
        Some(text.char_indices().map(mark).collect())
    }

    /// The byte ranges of `text` that are left as they are: ascending, apart from each other.
    fn kept_bytes(&self, text: &str, answer: bool) -> Vec<(usize, usize)> {
        let places = |constant: &str| -> Vec<(usize, usize)> {
            text.match_indices(constant).map(|(at, found)| (at, at + found.len())).collect()
        };
        let mut kept: Vec<_> = self.kept.iter().flat_map(|constant| places(constant)).collect();
        if answer {
            kept.extend(self.kept_in_answers.iter().flat_map(|constant| places(constant)));
        }
        kept.sort_unstable();
        kept.dedup_by(|next, last| {
            let overlap = next.0 <= last.1;
            last.1 = if overlap { last.1.max(next.1) } else { last.1 };
            overlap
        });
        kept
    }
}

impl Marks {
    /// All marks, as one text.
    pub(crate) fn chars(&self) -> String {
        self.pairs.iter().map(|(_, mark)| *mark).collect()
    }

    fn mark_of(&self, c: char) -> Option<char> {
        self.pairs.iter().find(|(plain, _)| *plain == c).map(|(_, mark)| *mark)
    }

    /// Turns the marks back; the byte offsets of the characters that were marked.
    pub(crate) fn unmark(&self, rendered: String) -> (String, Vec<usize>) {
        let is_mark = |c: char| self.pairs.iter().any(|(_, mark)| *mark == c);
        let Some(first) = rendered.find(is_mark) else { return (rendered, Vec::new()) };
        let (mut text, mut foreign) = (rendered[..first].to_string(), Vec::new());
        for c in rendered[first..].chars() {
            match self.pairs.iter().find(|(_, mark)| *mark == c) {
                None => text.push(c),
                Some((plain, _)) => {
                    foreign.push(text.len());
                    text.push(*plain);
                }
            }
        }
        (text, foreign)
    }
}

/// Whether a constant could be a part of a special token whose other parts stand before or after it.
fn overlap(constant: &str, token: &str) -> bool {
    let cuts = || token.char_indices().map(|(cut, _)| token.split_at(cut)).skip(1);
    token.contains(constant)
        || cuts().any(|(begin, end)| constant.ends_with(begin) || constant.starts_with(end))
}

/// Hands out private-use characters that the input does not use.
#[derive(Debug, Default)]
struct FreeChars {
    used: HashSet<char>,
    next: u32,
}

impl FreeChars {
    fn see(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.used.extend(text.chars().filter(|c| *c >= PRIVATE_USE)),
            Value::Array(items) => items.iter().for_each(|item| self.see(item)),
            Value::Object(map) => {
                for (key, item) in map {
                    self.used.extend(key.chars().filter(|c| *c >= PRIVATE_USE));
                    self.see(item);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The next unused character. Planes 15 and 16 have 131,068 of them; if a request used them all
    /// the last one is handed out, and its own occurrences count as text of the request.
    fn take(&mut self) -> char {
        loop {
            let c = char::from_u32(u32::from(PRIVATE_USE) + self.next).unwrap_or(char::MAX);
            self.next += 1;
            if c == char::MAX || !self.used.contains(&c) {
                return c;
            }
        }
    }
}

/// Constants that are left alone: each is looked for in every text. The rest is marked.
const MAX_KEPT: usize = 64;
/// The first private-use character of plane 15.
const PRIVATE_USE: char = '\u{F0000}';
/// How special tokens usually begin and end.
const USUAL_ENDS: [char; 4] = ['<', '>', '[', ']'];
