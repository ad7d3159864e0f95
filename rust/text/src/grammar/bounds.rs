//! Limits on the cost of a request's grammar, each with the reason for it.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// What compiling one grammar may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrammarBudget {
    /// Bytes of the schema, regex or grammar, all choices and tools together.
    pub max_bytes: usize,
    /// Time until the caller is refused: once while it waits for a compiler, and once while that works.
    pub max_time: Duration,
    /// Whose turn at the compilers it takes.
    pub tenant: u64,
}

impl Default for GrammarBudget {
    fn default() -> Self {
        Self { max_bytes: 256 << 10, max_time: Duration::from_secs(2), tenant: 0 }
    }
}

/// Levels of nested values in a schema; the largest in public collections have about 30.
pub(crate) const MAX_SCHEMA_DEPTH: usize = 96;
/// Values in a schema, leaves included.
pub(crate) const MAX_SCHEMA_VALUES: usize = 30_000;
/// Properties of one object: some rules cost their square.
pub(crate) const MAX_PROPERTIES: usize = 1_000;
/// Largest count in `minItems`, `maxLength` and the like: an unrolled rule costs memory for each.
pub(crate) const MAX_REPEAT: u64 = 10_000;
/// Properties of an object that has `minProperties` or `maxProperties`: one rule for each pair.
pub(crate) const MAX_COUNTED_PROPERTIES: usize = 100;
/// Largest `multipleOf`, scaled to an integer: the automaton has this many states.
pub(crate) const MAX_DIVISOR: u64 = 10_000;
/// Decimals of `multipleOf`: the library counts in 32 bits.
pub(crate) const MAX_DECIMALS: u32 = 8;
/// Numbers beyond this are not exact in JSON, and overflow in bounds.
pub(crate) const MAX_BOUND: f64 = 9_007_199_254_740_992.0;
/// A regex: compiling takes up to the square of its length.
pub(crate) const MAX_REGEX_BYTES: usize = 16 << 10;
/// Opening brackets of a Lark grammar: its parser recurses for each that is open.
pub(crate) const MAX_LARK_BRACKETS: usize = 4_000;
/// Lines of a Lark grammar: terminals that use each other recurse once a line.
pub(crate) const MAX_LARK_LINES: usize = 4_000;
/// Choices of `guided_choice`.
pub const MAX_GUIDED_CHOICES: usize = 10_000;

/// Grammars that are kept for the next request, and as many refusals.
pub(crate) const MAX_CACHED: usize = 64;
/// Bytes of their sources, all together; a grammar takes up to 200 times its source.
pub(crate) const MAX_CACHED_BYTES: usize = 512 << 10;
/// Compilations at a time; a runaway one holds its place until it ends.
pub(crate) const MAX_COMPILERS: usize = 3;
/// Those of one tenant: the next one finds a compiler whatever the first one sends.
pub(crate) const MAX_COMPILERS_OF_TENANT: usize = MAX_COMPILERS - 1;
/// Virtual size of a compiling thread's stack; only touched pages cost memory.
pub(crate) const COMPILE_STACK_BYTES: usize = 256 << 20;

/// The bounds of llguidance itself: fuel for building lexers (a million take about 20 ms) and for each
/// mask (200,000 take about 15 ms), so that no grammar holds a worker for long.
pub(crate) fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 5_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // 1 to 2 kB each.
        max_lexer_states: 50_000,
        max_grammar_size: 300_000,
        precompute_large_lexemes: true,
        // Errors must not hold text of the answer.
        verbose_errors: false,
    }
}
