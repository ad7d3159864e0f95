//! Errors of compiling and rendering.

/// A template that cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct CompileError {
    /// Line of the source, from one.
    pub line: u32,
    /// What is wrong there.
    pub message: String,
}

/// Why a rendering failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template called `raise_exception`; the message is the template's.
    #[error("{0}")]
    Raised(String),
    /// The input does not fit the template, or the template is wrong.
    #[error("{message} (line {line})")]
    Failed {
        /// Line of the template, from one.
        line: u32,
        /// What went wrong.
        message: String,
    },
    /// The template asked for more work than is allowed.
    #[error("more than {limit} units of work")]
    Limit {
        /// Units of work: about one byte made or half a nanosecond each.
        limit: u64,
    },
}

/// An error that is being propagated. One word, since every step returns it.
#[derive(Debug, Clone)]
pub(crate) struct Fault(Box<RenderError>);

/// The result of a step.
pub(crate) type Res<T> = Result<T, Fault>;

impl Fault {
    pub(crate) fn raised(message: String) -> Self {
        Self(Box::new(RenderError::Raised(message)))
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self(Box::new(RenderError::Failed { line: 0, message: message.into() }))
    }

    pub(crate) fn limit(limit: u64) -> Self {
        Self(Box::new(RenderError::Limit { limit }))
    }

    /// Whether the budget is spent. This error must not be caught.
    pub(crate) fn is_limit(&self) -> bool {
        matches!(*self.0, RenderError::Limit { .. })
    }

    /// Sets the line, unless an inner statement has set it.
    pub(crate) fn at(mut self, at: u32) -> Self {
        if let RenderError::Failed { line, .. } = &mut *self.0
            && *line == 0
        {
            *line = at;
        }
        self
    }

    pub(crate) fn into_error(self) -> RenderError {
        *self.0
    }
}

/// Ends a step with a message.
macro_rules! fail {
    ($($part:tt)*) => { return Err($crate::error::Fault::failed(format!($($part)*))) };
}
pub(crate) use fail;

/// The beginning of a name, for an error message.
pub(crate) fn shortened(name: &str) -> &str {
    name.char_indices().nth(80).map_or(name, |(end, _)| name.get(..end).unwrap_or(name))
}

/// The error of an integer that does not fit.
pub(crate) fn too_large() -> Fault {
    Fault::failed("an integer has more than 127 bits, which is not supported")
}
