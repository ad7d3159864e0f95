//! [7] Turns token ids into text, one at a time. Engine thread only. Never emits part of a
//! character and never loses one: the concatenated pieces, including `finish`, equal
//! `Tokenizer::decode` of all ids.

use std::sync::Arc;

use crate::Tokenizer;

/// The text state of one choice of one request.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special_tokens: bool,
    /// Special tokens that are text all the same, few: the parsers after us look for them.
    kept: Vec<u32>,
    /// Whether the next byte, if it is a space, is the one that SentencePiece put before the text.
    strip_space: bool,
    utf8: Utf8Stream,
    /// Whether the bytes held back are of a prompt that is not shown.
    holds_prompt: bool,
}

impl Detokenizer {
    /// A detokeniser for a text that begins here: a SentencePiece model's leading space is dropped,
    /// as `decode` does.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special_tokens: bool) -> Self {
        let strip_space = tokenizer.strips_leading_space();
        Self {
            tokenizer,
            skip_special_tokens,
            kept: Vec::new(),
            strip_space,
            utf8: Utf8Stream::default(),
            holds_prompt: false,
        }
    }

    /// A detokeniser for a text that goes on after other text (a completion after its prompt): a
    /// leading space is kept, so that prompt and completion join without gluing words.
    pub fn continuing(tokenizer: Arc<Tokenizer>, skip_special_tokens: bool) -> Self {
        Self { strip_space: false, ..Self::new(tokenizer, skip_special_tokens) }
    }

    /// Takes over the beginning of a character with which the prompt ends (token ids can): the answer
    /// then begins with the whole character. If the answer does not go on with it, a prompt that
    /// `is_shown` in front of the answer has U+FFFD there, and another one nothing.
    pub fn take_over(&mut self, prompt: impl DoubleEndedIterator<Item = u32>, is_shown: bool) {
        let mut tail = Vec::new();
        for id in prompt.rev().take(MOST_HELD) {
            match self.tokenizer.token_bytes(id) {
                Some(bytes) if !self.tokenizer.is_special(id) => tail.splice(..0, bytes.to_vec()),
                _ => break,
            };
        }
        self.utf8.hold(unfinished(&tail));
        self.holds_prompt = !is_shown && self.utf8.num_held > 0;
    }

    /// Keeps the text of these special tokens: the markers of tool calls and reasoning.
    pub fn keep(&mut self, markers: impl IntoIterator<Item = u32>) {
        self.kept.extend(markers);
    }

    /// Appends to `out` the text that `id` made certain. Bytes that may still become a character are
    /// held back (at most three); bytes that cannot become one are written as U+FFFD. An id beyond
    /// the vocabulary adds nothing.
    pub fn push(&mut self, id: u32, out: &mut String) {
        if self.skip_special_tokens && self.tokenizer.is_special(id) && !self.kept.contains(&id) {
            return;
        }
        let Some(mut bytes) = self.tokenizer.token_bytes(id) else { return };
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        if let (true, Some(next)) = (self.holds_prompt, bytes.first()) {
            self.holds_prompt = false;
            self.utf8.drop_unless_continued_by(*next);
        }
        self.utf8.push(bytes, out);
    }

    /// Appends what was held back as U+FFFD: for a text that is shown whole, such as a prompt without an
    /// answer. An answer that ends inside a character drops these bytes instead.
    pub fn finish(&mut self, out: &mut String) {
        self.utf8.finish(out);
    }
}

/// Incremental `String::from_utf8_lossy`: the same text, whatever the pieces.
#[derive(Debug, Default)]
struct Utf8Stream {
    /// The first `num_held` bytes are the beginning of a character whose end has not come yet.
    held: [u8; MOST_HELD],
    num_held: u8,
}

impl Utf8Stream {
    fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.num_held == 0 {
            let rest = take_certain(bytes, out);
            self.hold(rest);
        } else {
            let joined = [self.held(), bytes].concat();
            let rest = take_certain(&joined, out);
            self.hold(rest);
        }
    }

    fn finish(&mut self, out: &mut String) {
        out.push_str(&String::from_utf8_lossy(self.held()));
        self.hold(&[]);
    }

    fn drop_unless_continued_by(&mut self, next: u8) {
        let joined = [self.held(), &[next]].concat();
        if std::str::from_utf8(&joined).is_err_and(|e| e.error_len().is_some()) {
            self.hold(&[]);
        }
    }

    fn held(&self) -> &[u8] {
        &self.held[..usize::from(self.num_held)]
    }

    /// `rest`: at most `MOST_HELD` bytes, since four make any character whole or broken.
    fn hold(&mut self, rest: &[u8]) {
        self.held[..rest.len()].copy_from_slice(rest);
        self.num_held = rest.len() as u8;
    }
}

/// The end of `bytes` that is the beginning of a character.
fn unfinished(bytes: &[u8]) -> &[u8] {
    let last = &bytes[bytes.len().saturating_sub(MOST_HELD)..];
    let is_unfinished = |tail: &&[u8]| {
        std::str::from_utf8(tail).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
    };
    (0..last.len()).map(|start| &last[start..]).find(is_unfinished).unwrap_or_default()
}

/// Bytes of a character without its last one.
const MOST_HELD: usize = 3;

/// Appends the complete characters of `bytes` and returns the rest.
fn take_certain<'b>(mut bytes: &'b [u8], out: &mut String) -> &'b [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return &[];
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                out.push_str(&String::from_utf8_lossy(valid));
                match error.error_len() {
                    None => return rest,
                    Some(len) => {
                        out.push('\u{FFFD}');
                        bytes = &rest[len..];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
