//! One tensor of a file, as the file's header describes it. Plain data.

use crate::WeightType;

/// How a tensor is stored, according to the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// A type that executors read.
    Known(WeightType),
    /// The name of one that they do not.
    Other(String),
}

impl Stored {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Known(kind) => format!("{kind:?}"),
            Self::Other(kind) => kind.clone(),
        }
    }
}

/// A tensor of a file, its range already checked against the file's size.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) file: usize,
    /// From the start of the file.
    pub(crate) offset: u64,
    pub(crate) byte_len: u64,
    pub(crate) stored: Stored,
    /// Outermost first, as Hugging Face writes it.
    pub(crate) shape: Vec<u64>,
}
