//! [2] [7] Tool calling: how a model's template writes calls, the grammar that enforces them, and
//! the parser that finds them in a streamed answer.

mod call;
mod format;
mod grammar;
mod parser;
mod rules;

pub use format::ToolFormat;
pub use grammar::{ToolGrammar, ToolSpec};
pub use parser::CallIds;
pub(crate) use parser::ToolParser;
pub use rules::{CallPlace, ToolRules};
