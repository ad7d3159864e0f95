//! [8] Writes the parts of a split chat answer (reasoning, content, tool calls) as deltas and as
//! messages. Engine thread. Follows the rules of `json`.

use ingle_text::AnswerPiece;

use crate::json::{escape_into, integer_into, string_into};

/// A chat answer, or what is new of it, split into reasoning, content and calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitAnswer<'a> {
    pub(crate) pieces: &'a [AnswerPiece],
    /// Without a piece its content is null, not empty.
    pub(crate) has_only_calls: bool,
}

/// `"delta":{..}` with what is new. A call's first entry has its id and name.
pub(crate) fn delta_into(out: &mut Vec<u8>, answer: SplitAnswer<'_>, with_role: bool) {
    let pieces = answer.pieces;
    out.extend_from_slice(b",\"delta\":{");
    let mut separator: &[u8] = b"";
    if with_role {
        out.extend_from_slice(b"\"role\":\"assistant\"");
        separator = b",";
    }
    for (key, texts) in [("reasoning_content", reasoning(pieces)), ("content", content(pieces))] {
        // An answer without pieces has empty content, not absent content.
        let is_empty_answer = with_role && says_nothing(answer) && key == "content";
        if texts.is_empty() && !is_empty_answer {
            continue;
        }
        out.extend_from_slice(separator);
        separator = b",";
        text_field_into(out, key, &texts);
    }
    if has_calls(pieces) {
        out.extend_from_slice(separator);
        calls_into(out, pieces, true);
    }
    out.push(b'}');
}

/// `"message":{..}` with everything.
pub(crate) fn message_into(out: &mut Vec<u8>, answer: SplitAnswer<'_>) {
    let pieces = answer.pieces;
    out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",");
    let (content, reasoning) = (content(pieces), reasoning(pieces));
    if content.is_empty() && !says_nothing(answer) {
        out.extend_from_slice(b"\"content\":null");
    } else {
        text_field_into(out, "content", &content);
    }
    out.extend_from_slice(b",\"refusal\":null");
    if !reasoning.is_empty() {
        out.push(b',');
        text_field_into(out, "reasoning_content", &reasoning);
    }
    if has_calls(pieces) {
        out.push(b',');
        calls_into(out, pieces, false);
    }
    out.push(b'}');
}

/// Whether this is a text without a letter. Where only calls may come, there is no text.
fn says_nothing(answer: SplitAnswer<'_>) -> bool {
    answer.pieces.is_empty() && !answer.has_only_calls
}

fn content<'a>(pieces: &'a [AnswerPiece]) -> Vec<&'a str> {
    let text = |piece: &'a AnswerPiece| match piece {
        AnswerPiece::Content(text) => Some(text.as_str()),
        _ => None,
    };
    pieces.iter().filter_map(text).collect()
}

fn reasoning<'a>(pieces: &'a [AnswerPiece]) -> Vec<&'a str> {
    let text = |piece: &'a AnswerPiece| match piece {
        AnswerPiece::Reasoning(text) => Some(text.as_str()),
        _ => None,
    };
    pieces.iter().filter_map(text).collect()
}

fn has_calls(pieces: &[AnswerPiece]) -> bool {
    let is_call =
        |piece| matches!(piece, &AnswerPiece::Call { .. } | &AnswerPiece::Arguments { .. });
    pieces.iter().any(is_call)
}

fn text_field_into(out: &mut Vec<u8>, key: &str, texts: &[&str]) {
    string_into(out, key);
    out.extend_from_slice(b":\"");
    for text in texts {
        escape_into(out, text);
    }
    out.push(b'"');
}

/// One entry a call: its id and name if they are new, and the arguments that follow them.
fn calls_into(out: &mut Vec<u8>, pieces: &[AnswerPiece], with_index: bool) {
    out.extend_from_slice(b"\"tool_calls\":[");
    let mut open = None;
    for piece in pieces {
        match piece {
            AnswerPiece::Call { index, id, name } => {
                close_call(out, open.is_some());
                open = Some(*index);
                out.push(b'{');
                if with_index {
                    index_into(out, *index);
                    out.push(b',');
                }
                out.extend_from_slice(b"\"id\":");
                string_into(out, id);
                out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
                string_into(out, name);
                out.extend_from_slice(b",\"arguments\":\"");
            }
            AnswerPiece::Arguments { index, text } => {
                if open != Some(*index) {
                    close_call(out, open.is_some());
                    open = Some(*index);
                    out.push(b'{');
                    if with_index {
                        index_into(out, *index);
                        out.push(b',');
                    }
                    out.extend_from_slice(b"\"function\":{\"arguments\":\"");
                }
                escape_into(out, text);
            }
            AnswerPiece::Content(_) | AnswerPiece::Reasoning(_) => {}
        }
    }
    if open.is_some() {
        out.extend_from_slice(b"\"}}");
    }
    out.push(b']');
}

fn close_call(out: &mut Vec<u8>, is_open: bool) {
    if is_open {
        out.extend_from_slice(b"\"}},");
    }
}

fn index_into(out: &mut Vec<u8>, index: u32) {
    out.extend_from_slice(b"\"index\":");
    integer_into(out, u64::from(index));
}
