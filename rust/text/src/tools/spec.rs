//! [2] A function that a request declares.

use serde_json::Value;

/// A function that a request declares.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// JSON schema of the arguments; `None` for a function that takes none. A call that nothing
    /// binds may have others all the same.
    pub parameters: Option<Value>,
    /// The arguments must fit the schema also where calls are the model's choice.
    pub strict: bool,
}

impl ToolSpec {
    /// Whether the parameters are a schema at all, also where no grammar is made from them: types
    /// have names, patterns are regexes (of whatever dialect), nesting has an end.
    ///
    /// # Errors
    /// One line.
    pub fn check(&self) -> Result<(), String> {
        self.parameters.as_ref().map_or(Ok(()), crate::grammar::well_formed)
    }
}
