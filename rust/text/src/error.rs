//! The errors of this crate. `Load` and `Unsupported` are faults of the checkpoint, and the start
//! fails. All other variants are faults of the request (HTTP 400).

/// What can go wrong with a tokenizer, a chat template or a stop list.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A tokenizer or template file is broken.
    #[error("{file}: {message}")]
    Load {
        /// The file, or the GGUF key.
        file: &'static str,
        /// What is wrong, in one line.
        message: String,
    },
    /// The checkpoint asks for something this crate does not do.
    #[error("{file}: {what} {value:?} is not supported")]
    Unsupported {
        /// The file, or the GGUF key.
        file: &'static str,
        /// What kind of thing, for example "model type".
        what: &'static str,
        /// Its name in the file.
        value: String,
    },
    /// The template itself called `raise_exception`; the message is the template's.
    #[error("chat template refused the messages: {0}")]
    TemplateRefused(String),
    /// The template could not be rendered with these messages.
    #[error("chat template failed: {0}")]
    TemplateFailed(String),
    /// The template did more work or wrote more text than is allowed.
    #[error("chat template exceeded the limit of {limit} {what}")]
    TemplateLimit {
        /// What is limited.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The work was stopped because it was to be brief. Without that limit it may succeed.
    #[error("this takes longer than brief work may")]
    NotBrief,
    /// A field of the chat input cannot be honoured.
    #[error("{field}: {message}")]
    Input {
        /// The field of the request.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// Other grammars are being compiled; the same request may succeed later. Nobody's fault.
    #[error("{field}: other grammars are being compiled; try again")]
    CompilersBusy {
        /// The field of the request.
        field: &'static str,
    },
    /// The text could not be turned into tokens.
    #[error("the text could not be tokenised: {0}")]
    Encode(String),
}

impl TextError {
    pub(crate) fn load(file: &'static str, message: impl Into<String>) -> Self {
        Self::Load { file, message: bounded(message.into()) }
    }

    pub(crate) fn unsupported(
        file: &'static str,
        what: &'static str,
        value: impl Into<String>,
    ) -> Self {
        Self::Unsupported { file, what, value: excerpt(&value.into()) }
    }

    pub(crate) fn input(field: &'static str, message: impl Into<String>) -> Self {
        Self::Input { field, message: message.into() }
    }
}

/// The beginning of a text of a file, for an error.
pub(crate) fn excerpt(text: &str) -> String {
    first_chars(text, EXCERPT_CHARS)
}

/// The beginning of a message that can quote a file or a request whole: a JSON reader's, a template's own.
pub(crate) fn bounded(message: String) -> String {
    first_chars(&message, MAX_MESSAGE_CHARS)
}

fn first_chars(text: &str, count: usize) -> String {
    match text.char_indices().nth(count) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

const EXCERPT_CHARS: usize = 80;
const MAX_MESSAGE_CHARS: usize = 1000;
