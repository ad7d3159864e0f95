//! [2] Jinja2 templates for prompts: parsed once at load, rendered for each request. Any thread.
//!
//! The template comes with a model and its input with a request; neither is trusted. Every step,
//! item and byte is paid for before it is made. Nesting is bounded in sources, values and calls,
//! and no value can contain itself. The semantics are those of Jinja2 3.1.6 as Hugging Face
//! configures it: `trim_blocks`, `lstrip_blocks`, loop controls, the `generation` tag, the
//! immutable sandbox. For each piece of the output it is known whether the template or the request
//! wrote it.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod args;
mod arithmetic;
mod ast;
mod attributes;
mod budget;
mod builtins;
mod calls;
mod checks;
mod error;
mod escape;
mod eval;
mod filters;
mod floats;
mod format_spec;
mod formatting;
mod functions;
mod interp;
mod json;
mod lexer;
mod list_filters;
mod loops;
mod methods;
mod names;
mod ops;
mod parse_expr;
mod parser;
mod print;
mod scope;
mod select_filters;
mod slices;
mod sorting;
mod statements;
mod str_cases;
mod str_methods;
mod template;
mod text;
mod text_filters;
mod value;
mod vocabulary;

pub use budget::Effort;
pub use error::{CompileError, RenderError};
pub use template::{Context, Rendered, Template};
pub use text::Source;
pub use vocabulary::names;
