//! Formats whose calls have their name before the arguments, in markup: what stands where.

/// How a call is spelled. `frame`, `open`, the name, `name_end`, the body, `close`, the frame's end.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// What stands around all calls of a row, if anything does.
    pub(crate) frame: Option<(&'static str, &'static str)>,
    /// What begins a call; its name follows. Empty where a name needs no mark.
    pub(crate) open: &'static str,
    /// What follows the name; empty where the next tag does.
    pub(crate) name_end: &'static str,
    /// The arguments.
    pub(crate) body: Body,
    /// What ends a call.
    pub(crate) close: &'static str,
    /// Calls are the whole answer, perhaps between these two marks: text that begins otherwise has none.
    pub(crate) alone: Option<(&'static str, &'static str)>,
    /// Each call has a frame of its own.
    pub(crate) framed_each: bool,
    /// White space as the model writes it, for grammars: after the frame's beginning, after the
    /// name, between calls and before the frame's end.
    pub(crate) spaces: Spaces,
    /// Texts among the above that tokenizers may have as special tokens. The first opens a call.
    pub(crate) markers: &'static [&'static str],
}

/// White space of one dialect.
#[derive(Debug)]
pub(crate) struct Spaces {
    pub(crate) framed: &'static str,
    pub(crate) named: &'static str,
    pub(crate) between: &'static str,
    pub(crate) ended: &'static str,
}

/// How arguments are spelled.
#[derive(Debug)]
pub(crate) enum Body {
    /// An element for each: `key`, its name, `key_end`, perhaps white space and `value`, the value,
    /// `value_end`. Strings stand as they are, other values are JSON.
    Elements(Elements),
    /// One object of JSON; with `fence`, in a fence of Markdown.
    Json { fence: bool },
    /// `key=value, ..` in the syntax of Python, up to `)`.
    Keywords,
    /// `key:value,..` with keys that have no quotes and texts between `BARE_QUOTE`, up to `}`.
    Bare,
}

/// How one argument is spelled.
#[derive(Debug)]
pub(crate) struct Elements {
    pub(crate) key: &'static str,
    pub(crate) key_end: &'static str,
    /// What begins the value, after white space; empty where the key's end does.
    pub(crate) value: &'static str,
    pub(crate) value_end: &'static str,
    /// A line feed at each end of a value is no part of it.
    pub(crate) lines: bool,
    /// White space between a key and its value, and after a value, as the model writes it.
    pub(crate) before_value: &'static str,
    pub(crate) after_value: &'static str,
}

pub(crate) const QWEN3_CODER: Dialect = Dialect {
    frame: Some(("<tool_call>", "</tool_call>")),
    open: "<function=",
    name_end: ">",
    body: Body::Elements(Elements { lines: true, ..PARAMETER }),
    close: "</function>",
    alone: None,
    framed_each: true,
    spaces: Spaces { framed: "\n", named: "\n", between: "\n", ended: "\n" },
    markers: &["<tool_call>", "</tool_call>"],
};

pub(crate) const SEED_OSS: Dialect = Dialect {
    frame: Some(("<seed:tool_call>", "</seed:tool_call>")),
    body: Body::Elements(PARAMETER),
    markers: &["<seed:tool_call>", "</seed:tool_call>"],
    ..QWEN3_CODER
};

pub(crate) const GLM_45: Dialect = Dialect {
    frame: None,
    open: "<tool_call>",
    name_end: "\n",
    body: Body::Elements(Elements {
        key: "<arg_key>",
        key_end: "</arg_key>",
        value: "<arg_value>",
        value_end: "</arg_value>",
        lines: false,
        before_value: "\n",
        after_value: "\n",
    }),
    close: "</tool_call>",
    alone: None,
    framed_each: false,
    spaces: Spaces { framed: "", named: "", between: "\n", ended: "" },
    markers: &[
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ],
};

/// White space between parts is read, and not written.
pub(crate) const GLM_47: Dialect = Dialect {
    name_end: "",
    body: Body::Elements(Elements {
        key: "<arg_key>",
        key_end: "</arg_key>",
        value: "<arg_value>",
        value_end: "</arg_value>",
        lines: false,
        before_value: "",
        after_value: "",
    }),
    spaces: Spaces { framed: "", named: "", between: "", ended: "" },
    ..GLM_45
};

pub(crate) const MINIMAX_M2: Dialect = Dialect {
    frame: Some(("<minimax:tool_call>", "</minimax:tool_call>")),
    open: "<invoke name=\"",
    name_end: "\">",
    body: Body::Elements(Elements { key: "<parameter name=\"", key_end: "\">", ..PARAMETER }),
    close: "</invoke>",
    alone: None,
    framed_each: false,
    spaces: Spaces { framed: "\n", named: "\n", between: "\n", ended: "\n" },
    markers: &["<minimax:tool_call>", "</minimax:tool_call>"],
};

pub(crate) const OLMO_3: Dialect = Dialect {
    frame: Some(("<function_calls>", "</function_calls>")),
    open: "",
    name_end: "(",
    body: Body::Keywords,
    close: ")",
    alone: None,
    framed_each: false,
    spaces: Spaces { framed: "", named: "", between: "\n", ended: "" },
    markers: &["<function_calls>", "</function_calls>"],
};

pub(crate) const LLAMA_4_PYTHONIC: Dialect = Dialect {
    frame: Some(("[", "]")),
    alone: Some(("<|python_start|>", "<|python_end|>")),
    spaces: Spaces { framed: "", named: "", between: ", ", ended: "" },
    markers: &["<|python_start|>", "<|python_end|>"],
    ..OLMO_3
};

pub(crate) const DEEPSEEK_V3: Dialect = Dialect {
    open: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    name_end: "\n",
    body: Body::Json { fence: true },
    spaces: Spaces { framed: "", named: "", between: "\n", ended: "" },
    ..DEEPSEEK_V31
};

pub(crate) const DEEPSEEK_V31: Dialect = Dialect {
    frame: Some(("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
    open: "<｜tool▁call▁begin｜>",
    name_end: "<｜tool▁sep｜>",
    body: Body::Json { fence: false },
    close: "<｜tool▁call▁end｜>",
    alone: None,
    framed_each: false,
    spaces: Spaces { framed: "", named: "", between: "", ended: "" },
    markers: &[
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ],
};

/// Its names are words: they open a call only where the frame is open.
pub(crate) const GEMMA_4: Dialect = Dialect {
    frame: Some(("<|tool_call>", "<tool_call|>")),
    open: "call:",
    name_end: "{",
    body: Body::Bare,
    close: "",
    alone: None,
    framed_each: true,
    spaces: Spaces { framed: "", named: "", between: "", ended: "" },
    markers: &["<|tool_call>", "<tool_call|>", BARE_QUOTE],
};

/// What stands around a text of `Body::Bare`.
pub(crate) const BARE_QUOTE: &str = "<|\"|>";

/// The elements of Qwen and those who followed.
const PARAMETER: Elements = Elements {
    key: "<parameter=",
    key_end: ">",
    value: "",
    value_end: "</parameter>",
    lines: false,
    before_value: "",
    after_value: "\n",
};

impl Elements {
    /// Of a dialect that has none.
    pub(crate) const NONE: Self =
        Self { key: "", key_end: "", value_end: "", lines: false, ..PARAMETER };
}

/// What begins and ends the parts of a message in the harmony format.
pub(crate) const HARMONY: [&str; 7] = [
    "<|channel|>",
    "<|start|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];
