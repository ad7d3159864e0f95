//! [8] The whole body of an answer that is not streamed. Engine thread.

use ingle_text::Tokenizer;

use super::{ChoicePart, FrameBuilder, FrameFormat, usage_into};
use crate::answer_room::MAX_BODY_BYTES;
use crate::logprobs::prompt_into;
use crate::outbox::Usage;

impl FrameBuilder {
    /// The whole body of a request that is not streamed, choices by index. `None`: it would be larger than `MAX_BODY_BYTES`.
    pub(crate) fn body(
        &self,
        parts: &[ChoicePart<'_>],
        usage: Usage,
        tokenizer: &Tokenizer,
    ) -> Option<Vec<u8>> {
        let text: usize = parts.iter().map(|part| part.text.len() + 128).sum();
        let mut out = Vec::with_capacity(self.head.len() + text + 160);
        out.extend_from_slice(&self.head);
        if let Some(first) = parts.first() {
            self.prompt_ids_into(&mut out, first);
        }
        out.extend_from_slice(b",\"choices\":[");
        for (i, part) in parts.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            self.choice_into(&mut out, part, tokenizer);
        }
        out.push(b']');
        usage_into(&mut out, usage);
        let prompt = parts.first().and_then(|part| part.prompt_log_probs);
        if let (FrameFormat::Chat, Some(entries)) = (self.format, prompt) {
            out.extend_from_slice(b",\"prompt_logprobs\":");
            prompt_into(&mut out, entries, tokenizer);
        }
        out.push(b'}');
        (out.len() <= MAX_BODY_BYTES).then_some(out)
    }
}
