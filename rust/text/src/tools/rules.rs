//! What a request allows about tool calls.

use std::sync::Arc;

use super::{ToolFormat, ToolSpec};

/// Which tool calls are looked for.
#[derive(Clone, Debug)]
pub struct ToolRules {
    /// How the model spells calls.
    pub format: ToolFormat,
    /// The functions that the request declared.
    pub tools: Arc<[ToolSpec]>,
    /// Whether one answer may have several calls.
    pub parallel: bool,
    /// What is allowed besides calls.
    pub place: CallPlace,
}

/// Where an answer may contain calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPlace {
    /// Anywhere in a text.
    InText,
    /// A grammar allows nothing else. A call that is cut before its name is dropped.
    Alone,
    /// A grammar lets calls through, or JSON: what begins as no call has none, whatever its strings
    /// look like.
    OrJson,
}
