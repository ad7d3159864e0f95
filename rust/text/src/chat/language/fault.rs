//! [2] How a rendering ends early.

use crate::TextError;

/// Why a template could not be rendered.
#[derive(Debug)]
pub(crate) struct Fault {
    kind: Kind,
    /// Line of the template, from one; zero: not known yet.
    line: u16,
}

#[derive(Debug)]
enum Kind {
    Raised(String),
    Failed(String),
    TooMuch(u64),
}

impl Fault {
    /// The template called `raise_exception`.
    pub(crate) fn raised(message: String) -> Self {
        Self { kind: Kind::Raised(message), line: 0 }
    }

    /// These messages do not fit the template, or it is wrong.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { kind: Kind::Failed(message.into()), line: 0 }
    }

    /// The budget is spent.
    pub(crate) fn too_much(limit: u64) -> Self {
        Self { kind: Kind::TooMuch(limit), line: 0 }
    }

    /// Tells the line, unless one is known already.
    pub(crate) fn at(self, line: u16) -> Self {
        Self { line: if self.line == 0 { line } else { self.line }, ..self }
    }
}

impl From<Fault> for TextError {
    fn from(fault: Fault) -> Self {
        match fault.kind {
            Kind::Raised(message) => TextError::TemplateRefused(message),
            Kind::TooMuch(limit) => TextError::TemplateLimit { what: "units of work", limit },
            Kind::Failed(message) if fault.line == 0 => TextError::TemplateFailed(message),
            Kind::Failed(message) => {
                TextError::TemplateFailed(format!("{message} (line {})", fault.line))
            }
        }
    }
}
