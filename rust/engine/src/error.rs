//! Errors of the engine, in the project's four classes plus start-up. Any thread.

use ingle_text::TextError;

/// Every error that leaves the engine; `rust/python` maps each variant to one exception class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The caller's fault; nothing was queued.
    #[error("{message}")]
    Refused {
        /// One line that names the field and the numbers.
        message: String,
        /// The field, as OpenAI's `error.param`.
        param: Option<String>,
        /// OpenAI's `error.code`.
        code: Option<&'static str>,
        /// HTTP status, 400 unless said otherwise.
        status: u16,
    },
    /// Nothing was queued; the same request may succeed later.
    #[error("{message}")]
    Overloaded {
        /// One line with the numbers.
        message: String,
        /// When to come back.
        retry_after_s: u32,
        /// HTTP status: 429 where the queue is full, 503 where the worker is leaving.
        status: u16,
    },
    /// This request failed through no fault of its own; others go on.
    #[error("{0}")]
    Failed(String),
    /// The engine is dead and the worker must exit.
    #[error("{0}")]
    Fatal(String),
    /// Nothing was queued: it takes longer than an event loop can wait. For callers inside this crate;
    /// those outside get `None` from the methods that can end so.
    #[error("this takes longer than an event loop can wait")]
    NotBrief,
    /// The model or a setting is unusable; the engine did not start.
    #[error("{0}")]
    Model(String),
}

impl EngineError {
    /// A refusal with status 400 that names a field.
    pub(crate) fn refused(param: &str, message: impl Into<String>) -> Self {
        Self::Refused {
            message: message.into(),
            param: Some(param.to_owned()),
            code: Some("invalid_value"),
            status: 400,
        }
    }

    /// A value that a field cannot have: what is allowed and what was given, in the one form that
    /// `SamplingField` and the front end have too.
    pub(crate) fn not_allowed(
        param: &str,
        allowed: impl std::fmt::Display,
        given: impl std::fmt::Display,
    ) -> Self {
        Self::refused(param, format!("{param}: must be {allowed}, not {given}"))
    }

    /// The same error for the `number`th of several prompts: `prompt[3]` becomes `prompt[1][3]`, and
    /// `prompt` becomes `prompt[1]`.
    pub(crate) fn of_prompt(mut self, number: usize) -> Self {
        if let Self::Refused { message, param: Some(param), .. } = &mut self {
            let place = format!("prompt[{number}]");
            // A total that max_tokens makes too long names the prompt's part of it.
            *message = message.replace(" in prompt,", &format!(" in {place},"));
            if param == "prompt" {
                let mut named = message.clone();
                for (one, each) in [
                    ("prompt: ", format!("{place}: ")),
                    ("the prompt has", format!("{place} has")),
                    ("but prompt has", format!("but {place} has")),
                ] {
                    named = named.replace(one, &each);
                }
                // The other errors concern all prompts together.
                if named != *message {
                    (*message, *param) = (named, place);
                }
                return self;
            }
            for text in [message, param] {
                if let Some(rest) = text.strip_prefix("prompt[") {
                    *text = format!("prompt[{number}][{rest}");
                }
            }
        }
        self
    }

    /// A prompt, or prompt and answer, that can never fit.
    pub(crate) fn too_long(param: &str, message: impl Into<String>) -> Self {
        Self::Refused {
            message: message.into(),
            param: Some(param.to_owned()),
            code: Some("context_length_exceeded"),
            status: 400,
        }
    }
}

/// A refusal of the text layer; names its own field where it has one.
pub(crate) fn text_refusal(param: &str, error: &TextError) -> EngineError {
    if matches!(error, TextError::NotBrief) {
        return EngineError::NotBrief;
    }
    let param = if let TextError::Input { field, .. } = error { field } else { param };
    EngineError::refused(param, error.to_string())
}

/// The result of work that may have been too long for its caller.
pub(crate) fn if_brief<T>(result: Result<T, EngineError>) -> Result<Option<T>, EngineError> {
    match result {
        Err(EngineError::NotBrief) => Ok(None),
        result => result.map(Some),
    }
}

/// What the JSON reader says of a document. It quotes a name that it does not know, which can be all of
/// the document.
pub(crate) fn shortened(error: &serde_json::Error) -> String {
    error.to_string().chars().take(MAX_READER_CHARS).collect()
}

const MAX_READER_CHARS: usize = 300;
