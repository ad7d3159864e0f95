//! [1] The prompt's text before an answer. Caller's thread.

use std::sync::Arc;

use ingle_core::TokenId;
use ingle_text::Detokenizer;

use crate::served::Served;
use crate::wire::GenerationRequest;

/// What `echo` puts in front of each choice of one prompt.
#[derive(Default)]
pub(crate) struct Echo {
    pub(crate) text: String,
    /// With log-probs: characters before each prompt token.
    pub(crate) offsets: Vec<u32>,
}

/// The prompt's text in front of the answer, and where each of its tokens starts. A character that the
/// prompt leaves unfinished is the answer's, if there is one (`Detokenizer::take_over`).
pub(crate) fn echo(
    request: &GenerationRequest,
    served: &Served,
    ids: &[TokenId],
    text: Option<&str>,
    with_offsets: bool,
) -> Echo {
    if !request.output.echo {
        return Echo::default();
    }
    let tokenizer = &served.tokenizer;
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), request.skip_special_tokens);
    let mut decoded = String::new();
    let mut offsets = Vec::with_capacity(if with_offsets { ids.len() } else { 0 });
    let mut num_chars = 0;
    let mut counted = 0;
    for id in ids {
        if with_offsets {
            num_chars += decoded[counted..].chars().count() as u32;
            counted = decoded.len();
            offsets.push(num_chars);
        }
        detokenizer.push(id.0, &mut decoded);
    }
    if request.max_tokens == Some(0) {
        detokenizer.finish(&mut decoded);
    }
    // An uncut prompt is echoed as the client wrote it, because a tokenizer may normalise text.
    let whole = request.truncate_prompt_tokens.is_none();
    let text = match text {
        Some(text) if whole => text.to_owned(),
        _ => decoded,
    };
    Echo { text, offsets }
}
