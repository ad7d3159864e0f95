//! [8] Log-probs in OpenAI's two formats. Engine thread. Raw model log-probs and true bytes: a token
//! that is part of a character never appears as a replacement character alone.

use ingle_core::TokenLogProbs;
use ingle_text::Tokenizer;

use crate::answer_room::MAX_BODY_BYTES;
use crate::json::{escape_into, integer_into, integers_into, log_prob_into, string_into};

/// One token of prompt or answer with its log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEntry {
    /// The token.
    pub token: u32,
    /// Its log-probability; `None` for a prompt's first token, which nothing precedes.
    pub log_prob: Option<f32>,
    /// 1 for the most likely token.
    pub rank: u32,
    /// The most likely tokens, best first.
    pub top: Vec<(u32, f32)>,
    /// Characters of the choice's text before this token.
    pub offset: u32,
}

impl LogEntry {
    pub(crate) fn new(source: TokenLogProbs, offset: u32) -> Self {
        Self {
            token: source.token.0,
            log_prob: Some(source.log_prob),
            rank: source.rank,
            top: source.top.into_iter().map(|(token, log_prob)| (token.0, log_prob)).collect(),
            offset,
        }
    }

    /// The same with fewer alternatives.
    pub(crate) fn with_top(&self, top: u32) -> Self {
        let kept = self.top.len().min(top as usize);
        Self { top: self.top[..kept].to_vec(), ..*self }
    }

    /// The prompt's first token.
    pub(crate) fn first(token: u32) -> Self {
        Self { token, log_prob: None, rank: 0, top: Vec::new(), offset: 0 }
    }
}

/// `{"tokens":[..],"token_logprobs":[..],"top_logprobs":[..],"text_offset":[..]}`.
///
/// `top_logprobs` maps text to log-probability, so that a token's text must be unique within one
/// entry: pieces of characters read `bytes:\xf0\x9f`, and a text already there `token_id:N`.
pub(crate) fn completion_into(out: &mut Vec<u8>, entries: &[LogEntry], tokenizer: &Tokenizer) {
    out.extend_from_slice(b"{\"tokens\":[");
    separated(out, entries, |out, entry| string_into(out, &unique_text(tokenizer, entry.token)));
    out.extend_from_slice(b"],\"token_logprobs\":[");
    separated(out, entries, |out, entry| match entry.log_prob {
        Some(value) => log_prob_into(out, value),
        None => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b"],\"top_logprobs\":[");
    separated(out, entries, |out, entry| top_map_into(out, entry, tokenizer));
    out.extend_from_slice(b"],\"text_offset\":");
    integers_into(out, entries.iter().map(|entry| u64::from(entry.offset)));
    out.push(b'}');
}

/// `{"content":[{"token","logprob","bytes","top_logprobs":[..]}..],"refusal":null}`.
pub(crate) fn chat_into(out: &mut Vec<u8>, entries: &[LogEntry], tokenizer: &Tokenizer) {
    out.extend_from_slice(b"{\"content\":[");
    separated(out, entries, |out, entry| {
        chat_token_into(out, entry.token, entry.log_prob.unwrap_or(0.0), tokenizer);
        out.extend_from_slice(b",\"top_logprobs\":[");
        separated(out, &entry.top, |out, &(token, log_prob)| {
            chat_token_into(out, token, log_prob, tokenizer);
            out.push(b'}');
        });
        out.extend_from_slice(b"]}");
    });
    out.extend_from_slice(b"],\"refusal\":null}");
}

/// vLLM's `prompt_logprobs`: `[null,{"ID":{"logprob","rank","decoded_token"},..},..]`, the prompt's own
/// token first.
pub(crate) fn prompt_into(out: &mut Vec<u8>, entries: &[LogEntry], tokenizer: &Tokenizer) {
    out.push(b'[');
    separated(out, entries, |out, entry| {
        let Some(log_prob) = entry.log_prob else { return out.extend_from_slice(b"null") };
        let own = (entry.rank, (entry.token, log_prob));
        let others = (1..).zip(entry.top.iter().copied());
        out.push(b'{');
        for (rank, (token, log_prob)) in
            std::iter::once(own).chain(others.filter(|(_, (token, _))| *token != entry.token))
        {
            if out.last() != Some(&b'{') {
                out.push(b',');
            }
            out.push(b'"');
            integer_into(out, u64::from(token));
            out.extend_from_slice(b"\":{\"logprob\":");
            log_prob_into(out, log_prob);
            out.extend_from_slice(b",\"rank\":");
            integer_into(out, u64::from(rank));
            out.extend_from_slice(b",\"decoded_token\":");
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            string_into(out, &String::from_utf8_lossy(bytes));
            out.push(b'}');
        }
        out.push(b'}');
    });
    out.push(b']');
}

fn chat_token_into(out: &mut Vec<u8>, token: u32, log_prob: f32, tokenizer: &Tokenizer) {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    out.extend_from_slice(b"{\"token\":");
    string_into(out, &String::from_utf8_lossy(bytes));
    out.extend_from_slice(b",\"logprob\":");
    log_prob_into(out, log_prob);
    out.extend_from_slice(b",\"bytes\":");
    integers_into(out, bytes.iter().map(|&byte| u64::from(byte)));
}

fn top_map_into(out: &mut Vec<u8>, entry: &LogEntry, tokenizer: &Tokenizer) {
    let Some(log_prob) = entry.log_prob else {
        out.extend_from_slice(b"null");
        return;
    };
    let own = (entry.token, log_prob);
    let missing = !entry.top.iter().any(|&(token, _)| token == entry.token);
    let mut seen: Vec<std::borrow::Cow<'_, str>> = Vec::with_capacity(entry.top.len() + 1);
    out.push(b'{');
    for (token, log_prob) in entry.top.iter().copied().chain(missing.then_some(own)) {
        if !seen.is_empty() {
            out.push(b',');
        }
        let text = unique_text(tokenizer, token);
        out.push(b'"');
        if seen.contains(&text) {
            out.extend_from_slice(b"token_id:");
            integer_into(out, u64::from(token));
        } else {
            escape_into(out, &text);
        }
        out.extend_from_slice(b"\":");
        log_prob_into(out, log_prob);
        seen.push(text);
    }
    out.push(b'}');
}

/// A token's text, or its bytes in words where they are no text.
fn unique_text(tokenizer: &Tokenizer, token: u32) -> std::borrow::Cow<'_, str> {
    use std::fmt::Write as _;
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => {
            let mut text = String::from("bytes:");
            for byte in bytes {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\x{byte:02x}");
            }
            text.into()
        }
    }
}

fn separated<T>(out: &mut Vec<u8>, items: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
    for (i, item) in items.iter().enumerate() {
        // The body will be refused; what it would still get takes memory and time.
        if out.len() > MAX_BODY_BYTES {
            return;
        }
        if i > 0 {
            out.push(b',');
        }
        write(out, item);
    }
}
