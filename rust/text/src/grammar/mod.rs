//! [2] [7] Grammars decide which tokens may come next, so that an answer is JSON of a schema,
//! matches a regex, is one of several choices, or is a tool call. A grammar is compiled once on a
//! dedicated thread, within limits on size and time; it is immutable and shared. Each choice has
//! its position in the grammar as a `GrammarState`, which worker threads advance. Grammars come
//! with the request and are not trusted.

mod bounds;
mod cache;
mod compilers;
mod factory;
mod lark;
mod schema;
mod source;
mod state;
mod vocabulary;
mod words;

pub use bounds::{GrammarBudget, MAX_GUIDED_CHOICES};
pub use factory::GrammarFactory;
pub(crate) use lark::{Marker, literal, regex as regex_of};
pub(crate) use schema::{enforceable, json_rule, well_formed};
pub use source::{GrammarSource, GrammarSpec, Reasoned};
pub use state::{Grammar, GrammarError, GrammarState};
