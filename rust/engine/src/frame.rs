//! [8] Builds the bytes that a client reads: SSE events in OpenAI's completions and chat formats, with
//! HTTP/1.1 chunk framing; body.rs has whole bodies. Engine thread. Constant parts are built once per
//! request; the rest is appended to a buffer that the stream reuses.

mod body;

use std::ops::Range;

use ingle_core::TokenId;
use ingle_text::Tokenizer;
use smallvec::SmallVec;

use crate::answer_json::{self, SplitAnswer};
use crate::json::{escape_into, integer_into, integers_into, string_into};
use crate::logprobs::{LogEntry, chat_into, completion_into, prompt_into};
use crate::outbox::{Finish, StopCause, Usage};

/// Which of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameFormat {
    Completion,
    Chat,
}

/// What all frames of one request share.
#[derive(Debug)]
pub(crate) struct FrameBuilder {
    format: FrameFormat,
    stream: bool,
    chunked: bool,
    /// `{"id":..,"object":..,"created":..,"model":..` with `data: ` in front in a stream. Rarely longer than
    /// this; every frame of every stream begins with its own.
    head: SmallVec<[u8; 256]>,
    usage: UsagePolicy,
}

/// Which events of a stream carry usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsagePolicy {
    /// None.
    Never,
    /// One of its own at the end; the others say `"usage":null`.
    AtEnd,
    /// All, and one of its own at the end if asked.
    Continuous,
}

/// The names at the start of every frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameNames<'a> {
    pub(crate) id: &'a str,
    pub(crate) model: &'a str,
    pub(crate) created: u64,
}

/// A part of one choice, or in a whole body all of it.
#[derive(Debug)]
pub(crate) struct ChoicePart<'a> {
    pub(crate) index: u32,
    pub(crate) text: &'a str,
    /// In place of `text` where the answer is split.
    pub(crate) pieces: Option<SplitAnswer<'a>>,
    /// The chat role rides on the first part.
    pub(crate) with_role: bool,
    /// `None` if the client did not ask or nothing is due.
    pub(crate) log_probs: Option<&'a [LogEntry]>,
    pub(crate) token_ids: Option<&'a [u32]>,
    pub(crate) prompt_token_ids: Option<&'a [TokenId]>,
    /// What vLLM calls `prompt_logprobs`; in bodies only.
    pub(crate) prompt_log_probs: Option<&'a [LogEntry]>,
    pub(crate) finish: Option<&'a Finish>,
}

impl FrameBuilder {
    pub(crate) fn new(
        format: FrameFormat,
        stream: bool,
        chunked: bool,
        usage: UsagePolicy,
        names: FrameNames<'_>,
    ) -> Self {
        let mut head = Vec::with_capacity(128 + names.id.len() + names.model.len());
        if stream {
            head.extend_from_slice(b"data: ");
        }
        head.extend_from_slice(b"{\"id\":");
        string_into(&mut head, names.id);
        head.extend_from_slice(match (format, stream) {
            (FrameFormat::Completion, _) => b",\"object\":\"text_completion\",\"created\":",
            (FrameFormat::Chat, false) => b",\"object\":\"chat.completion\",\"created\":",
            (FrameFormat::Chat, true) => b",\"object\":\"chat.completion.chunk\",\"created\":",
        });
        integer_into(&mut head, names.created);
        head.extend_from_slice(b",\"model\":");
        string_into(&mut head, names.model);
        let head = SmallVec::from_slice(&head);
        Self { format, stream, chunked: stream && chunked, head, usage }
    }

    pub(crate) fn usage_policy(&self) -> UsagePolicy {
        self.usage
    }

    /// Starts a group of events at the end of `out`, with room for the chunk size; gives where.
    pub(crate) fn open(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        if self.chunked {
            out.extend_from_slice(CHUNK_HEAD);
        }
        start
    }

    /// Ends the group that starts at `start`; gives the bytes to send, none if no event was written.
    /// The last group of a complete stream also ends the HTTP body, which saves a write of its own.
    pub(crate) fn seal(&self, out: &mut Vec<u8>, start: usize, is_last: bool) -> Range<usize> {
        if !self.chunked {
            return start..out.len();
        }
        let first_event = start + CHUNK_HEAD.len();
        let mut size = out.len() - first_event;
        if size == 0 {
            out.truncate(start);
            return start..start;
        }
        out.extend_from_slice(if is_last { b"\r\n0\r\n\r\n" } else { b"\r\n" });
        let mut begin = first_event - b"\r\n".len();
        while size > 0 {
            begin -= 1;
            out[begin] = b"0123456789abcdef"[size & 15];
            size >>= 4;
        }
        begin..out.len()
    }

    /// One SSE event with a part of one choice.
    pub(crate) fn event_into(
        &self,
        out: &mut Vec<u8>,
        part: &ChoicePart<'_>,
        usage: Usage,
        tokenizer: &Tokenizer,
    ) {
        out.extend_from_slice(&self.head);
        self.prompt_ids_into(out, part);
        out.extend_from_slice(b",\"choices\":[");
        self.choice_into(out, part, tokenizer);
        out.push(b']');
        match self.usage {
            UsagePolicy::Never => {}
            UsagePolicy::AtEnd => out.extend_from_slice(b",\"usage\":null"),
            UsagePolicy::Continuous => usage_into(out, usage),
        }
        out.extend_from_slice(b"}\n\n");
    }

    /// The last events of a stream: usage if asked for, then `[DONE]`.
    pub(crate) fn done_into(&self, out: &mut Vec<u8>, usage: Option<Usage>) {
        if let Some(usage) = usage {
            out.extend_from_slice(&self.head);
            out.extend_from_slice(b",\"choices\":[]");
            usage_into(out, usage);
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// The last events of a stream that failed.
    pub(crate) fn error_into(out: &mut Vec<u8>, error_object: &[u8]) {
        out.extend_from_slice(b"data: {\"error\":");
        out.extend_from_slice(error_object);
        out.extend_from_slice(b"}\n\ndata: [DONE]\n\n");
    }

    /// vLLM puts a chat's prompt ids, and the prompt's log-probs, beside `choices`, a completion's into
    /// the choice.
    fn prompt_ids_into(&self, out: &mut Vec<u8>, part: &ChoicePart<'_>) {
        if let (FrameFormat::Chat, Some(ids)) = (self.format, part.prompt_token_ids) {
            out.extend_from_slice(b",\"prompt_token_ids\":");
            integers_into(out, ids.iter().map(|id| u64::from(id.0)));
        }
    }

    fn choice_into(&self, out: &mut Vec<u8>, part: &ChoicePart<'_>, tokenizer: &Tokenizer) {
        out.extend_from_slice(b"{\"index\":");
        integer_into(out, u64::from(part.index));
        match (self.format, self.stream) {
            (FrameFormat::Completion, _) => {
                out.extend_from_slice(b",\"text\":\"");
                escape_into(out, part.text);
                out.push(b'"');
            }
            (FrameFormat::Chat, _) if let Some(pieces) = part.pieces => match self.stream {
                true => answer_json::delta_into(out, pieces, part.with_role),
                false => answer_json::message_into(out, pieces),
            },
            (FrameFormat::Chat, false) => {
                out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",\"content\":\"");
                escape_into(out, part.text);
                out.extend_from_slice(b"\",\"refusal\":null}");
            }
            (FrameFormat::Chat, true) => delta_into(out, part),
        }
        match part.log_probs {
            None => out.extend_from_slice(b",\"logprobs\":null"),
            Some(entries) => {
                out.extend_from_slice(b",\"logprobs\":");
                match self.format {
                    FrameFormat::Completion => completion_into(out, entries, tokenizer),
                    FrameFormat::Chat => chat_into(out, entries, tokenizer),
                }
            }
        }
        match part.finish {
            None => out.extend_from_slice(b",\"finish_reason\":null"),
            Some(finish) => finish_into(out, finish),
        }
        if let (FrameFormat::Completion, Some(ids)) = (self.format, part.prompt_token_ids) {
            out.extend_from_slice(b",\"prompt_token_ids\":");
            integers_into(out, ids.iter().map(|id| u64::from(id.0)));
        }
        if let (FrameFormat::Completion, Some(entries)) = (self.format, part.prompt_log_probs) {
            out.extend_from_slice(b",\"prompt_logprobs\":");
            prompt_into(out, entries, tokenizer);
        }
        if let Some(ids) = part.token_ids {
            out.extend_from_slice(b",\"token_ids\":");
            integers_into(out, ids.iter().map(|&id| u64::from(id)));
        }
        out.push(b'}');
    }
}

fn delta_into(out: &mut Vec<u8>, part: &ChoicePart<'_>) {
    out.extend_from_slice(b",\"delta\":{");
    if part.with_role {
        out.extend_from_slice(b"\"role\":\"assistant\",");
    }
    if part.with_role || !part.text.is_empty() {
        out.extend_from_slice(b"\"content\":\"");
        escape_into(out, part.text);
        out.push(b'"');
    }
    out.push(b'}');
}

fn finish_into(out: &mut Vec<u8>, finish: &Finish) {
    out.extend_from_slice(b",\"finish_reason\":\"");
    out.extend_from_slice(finish.reason.as_bytes());
    out.extend_from_slice(b"\",\"stop_reason\":");
    match &finish.stop {
        StopCause::None => out.extend_from_slice(b"null"),
        StopCause::Text(text) => string_into(out, text),
        StopCause::Token(id) => integer_into(out, u64::from(*id)),
    }
}

fn usage_into(out: &mut Vec<u8>, usage: Usage) {
    out.extend_from_slice(b",\"usage\":{\"prompt_tokens\":");
    integer_into(out, usage.prompt_tokens);
    out.extend_from_slice(b",\"total_tokens\":");
    integer_into(out, usage.prompt_tokens + usage.completion_tokens);
    out.extend_from_slice(b",\"completion_tokens\":");
    integer_into(out, usage.completion_tokens);
    out.extend_from_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
    integer_into(out, usage.cached_tokens);
    out.extend_from_slice(b"}}");
}

/// Room for eight digits of the size: a group of events stays far below 4 GiB.
const CHUNK_HEAD: &[u8] = b"        \r\n";
