//! The tokenizer and the templates, on their way while the device loads. At start; any thread may wait.

use std::sync::OnceLock;

use ingle_cuda::LateSize;

use crate::error::EngineError;
use crate::tokenizer_files::TextParts;

/// Filled once, by one thread.
#[derive(Default)]
pub(crate) struct LateText {
    /// `None`: it failed.
    parts: OnceLock<Option<TextParts>>,
    size: LateSize,
}

impl LateText {
    /// Keeps what `read` makes; an error of it ends everybody's wait, as a panic does.
    pub(crate) fn fill(
        &self,
        read: impl FnOnce() -> Result<TextParts, EngineError>,
    ) -> Result<(), EngineError> {
        let _ended = Ended(self);
        let parts = read()?;
        self.size.set(Some(parts.vocab_size));
        let _ = self.parts.set(Some(parts));
        Ok(())
    }

    /// Blocks until they are here.
    ///
    /// # Errors
    /// `EngineError::Failed` if they failed; `fill` has returned the reason.
    pub(crate) fn wait(&self) -> Result<&TextParts, EngineError> {
        self.parts.wait().as_ref().ok_or_else(given_up)
    }

    /// The tokenizer's number of entries, for a device that waits for it by itself.
    pub(crate) fn size(&self) -> LateSize {
        self.size.clone()
    }

    /// What has come; does not block.
    pub(crate) fn into_parts(self) -> Result<TextParts, EngineError> {
        self.parts.into_inner().flatten().ok_or_else(given_up)
    }
}

fn given_up() -> EngineError {
    EngineError::Failed("the tokenizer did not load".to_owned())
}

struct Ended<'a>(&'a LateText);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        // Without effect after a success.
        self.0.size.set(None);
        let _ = self.0.parts.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_tokenizer_that_fails() {
        let text = LateText::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| text.wait().is_err());
            let error = text.fill(|| Err(EngineError::Model("tokenizer.json: broken".to_owned())));
            assert_eq!(error.unwrap_err().to_string(), "tokenizer.json: broken");
            assert!(waiting.join().unwrap());
        });
        assert!(text.into_parts().is_err());
    }

    #[test]
    fn nobody_waits_for_a_tokenizer_that_panics() {
        let text = LateText::default();
        std::thread::scope(|scope| {
            let filling = scope.spawn(|| text.fill(|| panic!("a tokenizer's own mistake")));
            assert!(text.wait().is_err());
            assert!(filling.join().is_err());
        });
    }
}
