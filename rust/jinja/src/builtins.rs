//! The names that Jinja2 and Python define: functions, filters, tests and methods. They are
//! implemented in `functions.rs`, `filters.rs`, `checks.rs` and `methods.rs`.

/// A function; `FUNCTIONS` has their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    Lipsum,
    RaiseException,
    StrftimeNow,
}

impl Function {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "range" => Self::Range,
            "dict" => Self::Dict,
            "namespace" => Self::Namespace,
            "cycler" => Self::Cycler,
            "joiner" => Self::Joiner,
            "lipsum" => Self::Lipsum,
            "raise_exception" => Self::RaiseException,
            "strftime_now" => Self::StrftimeNow,
            _ => return None,
        })
    }

    /// As Python prints it, without addresses.
    pub(crate) fn repr(self) -> &'static str {
        match self {
            Self::Range => "<function safe_range>",
            Self::Dict => "<class 'dict'>",
            Self::Namespace => "<class 'jinja2.utils.Namespace'>",
            Self::Cycler => "<class 'jinja2.utils.Cycler'>",
            Self::Joiner => "<class 'jinja2.utils.Joiner'>",
            Self::Lipsum => "<function generate_lorem_ipsum>",
            Self::RaiseException => "<function raise_exception>",
            Self::StrftimeNow => "<function strftime_now>",
        }
    }
}

/// A filter, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filter(&'static str);

impl Filter {
    pub(crate) fn named(name: &str) -> Option<Self> {
        FILTERS.iter().find(|known| **known == name).map(|known| Self(known))
    }

    pub(crate) fn name(self) -> &'static str {
        self.0
    }
}

/// A test, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check(&'static str);

impl Check {
    pub(crate) fn named(name: &str) -> Option<Self> {
        TESTS.iter().find(|known| **known == name).map(|known| Self(known))
    }

    pub(crate) fn name(self) -> &'static str {
        self.0
    }
}

/// A method, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method(&'static str);

impl Method {
    /// The method of this name, if it is one of `names`.
    pub(crate) fn among(names: &[&'static str], name: &str) -> Option<Self> {
        names.iter().find(|known| **known == name).map(|known| Self(known))
    }

    pub(crate) fn name(self) -> &'static str {
        self.0
    }
}

pub(crate) const FUNCTIONS: [&str; 8] =
    ["range", "dict", "namespace", "cycler", "joiner", "lipsum", "raise_exception", "strftime_now"];
pub(crate) const FILTERS: [&str; 49] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
];
pub(crate) const TESTS: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];
