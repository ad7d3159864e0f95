//! [2] [7] Grammars: which tokens may come next, so that an answer is JSON of a schema, matches a
//! regex, is one of some choices or is a tool call. Compiled once on threads of their own, under a
//! budget of size and time; immutable and shared. The position in a grammar is one `GrammarState` per
//! choice, advanced by worker threads. Grammars come with the request: nothing in them is trusted.

mod bounds;
mod cache;
mod compilers;
mod factory;
mod lark;
mod schema;
mod source;
mod state;
mod vocabulary;

pub use bounds::GrammarBudget;
pub use factory::GrammarFactory;
pub(crate) use lark::{Marker, literal};
pub(crate) use schema::{enforceable, json_rule, well_formed};
pub use source::{GrammarSource, GrammarSpec, Reasoned};
pub use state::{Grammar, GrammarError, GrammarState};
