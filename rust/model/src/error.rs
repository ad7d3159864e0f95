//! Everything that can be wrong with a checkpoint. Each error is one line that names the file and
//! the field or tensor.

use std::borrow::Cow;

/// Why a checkpoint cannot be loaded. Always the checkpoint's (or its owner's) fault, found before
/// any weight memory is allocated.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The operating system refused.
    #[error("{file}: cannot {action}: {cause}")]
    Io {
        /// Path as given.
        file: String,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// A path that holds no checkpoint, or more than one.
    #[error("{path}: {reason}")]
    Layout {
        /// Path as given.
        path: String,
        /// What is missing or doubled.
        reason: String,
    },
    /// A Git LFS pointer instead of the file it stands for.
    #[error("{file}: this is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`")]
    LfsPointer {
        /// Path as given.
        file: String,
    },
    /// A number that would make us allocate or loop too much.
    #[error("{file}: {what} is {value}, the limit is {limit}")]
    Limit {
        /// Path as given.
        file: String,
        /// Of what.
        what: String,
        /// Found.
        value: u64,
        /// Allowed.
        limit: u64,
    },
    /// Bytes that do not follow the format.
    #[error("{file}: {reason}")]
    Malformed {
        /// Path as given.
        file: String,
        /// What is wrong, with the numbers.
        reason: String,
    },
    /// The index does not fit the folder.
    #[error("{file}: index does not match the folder: {reason}")]
    Index {
        /// Path of the index.
        file: String,
        /// What differs.
        reason: String,
    },
    /// A tensor with the wrong type, shape or place.
    #[error("{file}: tensor {tensor}: {reason}")]
    Tensor {
        /// The file that holds it.
        file: String,
        /// Its name.
        tensor: String,
        /// What is wrong, with the numbers.
        reason: String,
    },
    /// A tensor that the model needs.
    #[error("{file}: tensor {tensor} is missing")]
    MissingTensor {
        /// File or folder searched.
        file: String,
        /// Its name.
        tensor: String,
    },
    /// A tensor that nothing uses, so that leaving it out would change the model.
    #[error("{file}: tensor {tensor} is not used by this model ({count} such tensors)")]
    UnusedTensor {
        /// The file that holds it.
        file: String,
        /// The first one's name.
        tensor: String,
        /// How many there are.
        count: usize,
    },
    /// A field that the model needs.
    #[error("{file}: {field} is missing")]
    MissingField {
        /// Path as given.
        file: String,
        /// Key.
        field: String,
    },
    /// A field with a value of the wrong type or outside its range.
    #[error("{file}: {field}: {reason}")]
    Field {
        /// Path as given.
        file: String,
        /// Key.
        field: String,
        /// What is wrong.
        reason: String,
    },
    /// Something that the checkpoint needs and this engine lacks.
    #[error("{file}: {field}: {value} is not supported (supported: {supported})")]
    Unsupported {
        /// Path as given.
        file: String,
        /// Key.
        field: String,
        /// What it asks for.
        value: String,
        /// What it may ask for.
        supported: Cow<'static, str>,
    },
}

impl ModelError {
    pub(crate) fn malformed(file: &str, reason: impl Into<String>) -> Self {
        // A reason can quote the file, by way of the JSON reader.
        Self::Malformed { file: file.to_owned(), reason: one_line(&reason.into(), 400) }
    }

    pub(crate) fn field(file: &str, field: &str, reason: impl Into<String>) -> Self {
        Self::Field { file: file.to_owned(), field: shown(field), reason: reason.into() }
    }

    pub(crate) fn missing_field(file: &str, field: &str) -> Self {
        Self::MissingField { file: file.to_owned(), field: shown(field) }
    }

    pub(crate) fn tensor(file: &str, tensor: &str, reason: impl Into<String>) -> Self {
        Self::Tensor { file: file.to_owned(), tensor: shown(tensor), reason: reason.into() }
    }

    pub(crate) fn unsupported(
        file: &str,
        field: &str,
        value: impl AsRef<str>,
        supported: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Unsupported {
            file: file.to_owned(),
            field: shown(field),
            value: shown(value.as_ref()),
            supported: supported.into(),
        }
    }

    pub(crate) fn limit(file: &str, what: impl Into<String>, value: u64, limit: u64) -> Self {
        Self::Limit { file: file.to_owned(), what: what.into(), value, limit }
    }

    pub(crate) fn io(file: &str, action: &'static str, cause: std::io::Error) -> Self {
        Self::Io { file: file.to_owned(), action, cause }
    }
}

/// A name from an untrusted file, fit for one line of a message.
pub(crate) fn shown(text: &str) -> String {
    one_line(text, 100)
}

/// Text with control characters escaped, cut after `limit` characters.
pub(crate) fn one_line(text: &str, limit: usize) -> String {
    let mut out = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == limit {
            out.push('…');
            break;
        }
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}
