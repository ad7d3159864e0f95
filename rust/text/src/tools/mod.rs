//! [2] [7] Tool calling: how a model's template spells calls, the grammar that forces them, and the
//! parser that finds them in an answer as it streams.

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
