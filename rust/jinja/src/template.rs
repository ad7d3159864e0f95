//! The crate's interface: compiles a source and renders it with variables.

use std::collections::HashMap;
use std::fmt;

use crate::ast::Program;
use crate::budget::{Budget, Effort};
use crate::error::{CompileError, RenderError};
use crate::interp::Interp;
use crate::lexer;
use crate::parser::Parser;
use crate::scope;
use crate::text::{Run, Source};
use crate::value::Value;

/// A compiled template. Shared between threads.
pub struct Template {
    program: Program,
}

/// The variables of one rendering.
#[derive(Default)]
pub struct Context {
    variables: HashMap<String, Value>,
    /// Approximate bytes of the input; the budget grows with it.
    bytes: usize,
}

/// The output of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The whole text.
    pub text: String,
    /// Units of work that it took.
    pub units: u64,
    runs: Vec<Run>,
}

impl Template {
    /// Compiles a source.
    ///
    /// # Errors
    /// `CompileError` with the line.
    pub fn new(source: &str) -> Result<Self, CompileError> {
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!("{} bytes, at most {MAX_SOURCE_BYTES}", source.len());
            return Err(CompileError { line: 1, message });
        }
        let mut parser = Parser::new(lexer::tokens(source)?);
        let body = parser.template()?;
        Ok(Self { program: scope::program(body, parser)? })
    }

    /// Renders the template. `strftime` is called for `strftime_now`.
    ///
    /// # Errors
    /// As `RenderError` says.
    pub fn render(
        &self,
        context: &Context,
        effort: Effort,
        strftime: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Rendered, RenderError> {
        let budget = Budget::for_input(context.bytes, effort);
        let interp = Interp::new(&self.program, &context.variables, budget, strftime);
        let (out, units) = interp.run().map_err(crate::error::Fault::into_error)?;
        let (text, runs) = out.into_parts();
        Ok(Rendered { text, units, runs })
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").finish_non_exhaustive()
    }
}

impl Context {
    /// Sets a variable; every text in it is from `source`.
    ///
    /// # Errors
    /// `RenderError::Failed` if the value is nested too deep.
    pub fn set(
        &mut self,
        name: &str,
        value: serde_json::Value,
        source: Source,
    ) -> Result<(), RenderError> {
        self.bytes = self.bytes.saturating_add(size_of_json(&value));
        let value = Value::from_json(value, source, &Budget::unlimited());
        let value = value.map_err(crate::error::Fault::into_error)?;
        self.variables.insert(name.to_owned(), value);
        Ok(())
    }

    /// Sets a variable to a list of values, each from a source of its own.
    ///
    /// # Errors
    /// As `set`.
    pub fn set_list(
        &mut self,
        name: &str,
        values: Vec<(serde_json::Value, Source)>,
    ) -> Result<(), RenderError> {
        let free = Budget::unlimited();
        let mut items = Vec::with_capacity(values.len());
        for (value, source) in values {
            self.bytes = self.bytes.saturating_add(size_of_json(&value));
            items.push(Value::from_json(value, source, &free));
        }
        let items = items.into_iter().collect::<Result<Vec<_>, _>>();
        let list = items.and_then(|items| Value::list(items, &free));
        let list = list.map_err(crate::error::Fault::into_error)?;
        self.variables.insert(name.to_owned(), list);
        Ok(())
    }
}

impl Context {
    /// Approximate bytes of all variables.
    pub fn size(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.variables.keys().collect();
        f.debug_struct("Context").field("names", &names).finish_non_exhaustive()
    }
}

impl Rendered {
    /// The pieces of the text, each with its source. Together they are the whole text.
    pub fn pieces(&self) -> impl Iterator<Item = (&str, Source)> {
        let mut start = 0;
        self.runs.iter().map(move |run| {
            let piece = self.text.get(start..run.end).unwrap_or("");
            start = run.end;
            (piece, run.source)
        })
    }
}

/// The approximate bytes of a JSON value. The parser has bounded its depth.
fn size_of_json(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len() + 16,
        serde_json::Value::Array(items) => items.iter().map(size_of_json).sum::<usize>() + 16,
        serde_json::Value::Object(map) => {
            map.iter().map(|(key, value)| key.len() + 16 + size_of_json(value)).sum::<usize>() + 16
        }
        _ => 16,
    }
}

/// Larger than any published template.
const MAX_SOURCE_BYTES: usize = 256 << 10;
