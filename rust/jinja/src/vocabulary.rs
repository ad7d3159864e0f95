//! All that templates can call, by name. For tests that try each.

use crate::builtins::{FILTERS, FUNCTIONS, TESTS};
use crate::methods::{DICT, STR};

/// What templates can call, as (kind, name): a `function`, a `filter`, a `test`, or a method of a
/// `str` or a `dict`.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let kinds: [(&str, &[&str]); 5] = [
        ("function", &FUNCTIONS),
        ("filter", &FILTERS),
        ("test", &TESTS),
        ("str", &STR),
        ("dict", &DICT),
    ];
    kinds.into_iter().flat_map(|(kind, names)| names.iter().map(move |name| (kind, *name)))
}
