//! [2] [7] Tool calling: how a model's template writes calls, the grammar that enforces them, and
//! the parser that finds them in a streamed answer.

mod argument;
mod bare_arguments;
mod bare_grammar;
mod block_calls;
mod block_grammar;
mod call;
mod dialect;
mod format;
mod grammar;
mod harmony_grammar;
mod history;
mod ids;
mod json_calls;
mod json_text;
mod keywords;
mod marks;
mod members;
mod named_calls;
mod parser;
mod python;
mod rules;
mod spec;
mod speller;
mod value_grammar;
mod values;

pub(crate) use call::CallStep;
pub(crate) use dialect::HARMONY;
pub use format::ToolFormat;
pub use grammar::ToolGrammar;
pub(crate) use harmony_grammar::{Begins, around_body};
pub(crate) use ids::CallIds;
pub(crate) use marks::{DISTINCT, begun_marker, earliest};
pub(crate) use named_calls::NamedCalls;
pub(crate) use parser::ToolParser;
pub use rules::{CallPlace, ToolRules};
pub use spec::ToolSpec;
pub(crate) use speller::Speller;
