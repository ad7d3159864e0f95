//! Random templates out of what is expensive, nested or wrong, with random messages: each ends in
//! bounded time, with a text or an error of one line, and never takes the process with it.

use std::time::{Duration, Instant};

use ingle_text::{ChatInput, ChatTemplate, TextError};
use serde_json::{Value, json};

#[test]
fn test_random_templates_end() {
    for seed in 0..400 {
        check(seed);
    }
}

#[test]
#[ignore = "takes minutes: 100,000 templates"]
fn test_many_random_templates_end() {
    let slowest = (1_000..101_000).map(|seed| (check(seed), seed)).max().unwrap();
    println!("the slowest took {:?}: seed {}", slowest.0, slowest.1);
}

/// Renders one template; how long it took.
fn check(seed: u64) -> Duration {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let source = random.body(4);
    let mut input = ChatInput { messages: random.messages(), ..ChatInput::default() };
    input.kwargs.insert("given".into(), random.json(3));
    input.continue_final_message = random.below(8) == 0;
    let began = Instant::now();
    let rendered = std::panic::catch_unwind(|| {
        ChatTemplate::new(&source, "<s>", "</s>").and_then(|template| template.render(&input))
    });
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "seed {seed}: {took:?}\n{source}");
    let Ok(rendered) = rendered else { panic!("seed {seed} panicked\n{source}") };
    match rendered {
        Ok(prompt) => assert!(prompt.as_str().len() < 64 << 20, "seed {seed}\n{source}"),
        // The template's own message may be anything.
        Err(TextError::TemplateRefused(_)) => {}
        Err(error) => {
            let error = error.to_string();
            assert!(error.len() < 600 && !error.contains('\n'), "seed {seed}: {error}\n{source}");
        }
    }
    took
}

/// A generator (xorshift64*) of templates.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33).unwrap() % end
    }

    fn of<'t>(&mut self, choices: &[&'t str]) -> &'t str {
        choices[self.below(choices.len())]
    }

    fn body(&mut self, depth: usize) -> String {
        let count = 1 + self.below(4);
        (0..count).map(|_| self.stmt(depth)).collect()
    }

    fn stmt(&mut self, depth: usize) -> String {
        let Some(less) = depth.checked_sub(1) else {
            return format!("{{{{ {} }}}}", self.expr(1));
        };
        let (name, other) = (self.of(NAMES), self.of(NAMES));
        match self.below(16) {
            0 | 1 => format!("{{% set {name} = {} %}}", self.expr(3)),
            2 => format!("{{% set ns.{name} = {} %}}", self.expr(3)),
            3 => format!("{{% set {name} = namespace({other}={}) %}}", self.expr(2)),
            4 | 5 => {
                let recursive = self.of(&["", "", " recursive"]);
                let (over, body) = (self.expr(2), self.body(less));
                format!("{{% for {name} in {over}{recursive} %}}{body}{{% endfor %}}")
            }
            6 => {
                let (condition, body) = (self.expr(2), self.body(less));
                format!("{{% if {condition} %}}{body}{{% else %}}-{{% endif %}}")
            }
            7 => {
                let body = self.body(less);
                format!("{{% macro {name}({other}) %}}{body}{{% endmacro %}}")
            }
            8 => {
                let (argument, body) = (self.expr(1), self.body(less));
                format!("{{% call {name}({argument}) %}}{body}{{% endcall %}}")
            }
            9 => format!("{{% set {name} %}}{}{{% endset %}}", self.body(less)),
            10 => {
                let (filter, body) = (self.of(FILTERS), self.body(less));
                format!("{{% filter {filter} %}}{body}{{% endfilter %}}")
            }
            11 => {
                let (value, body) = (self.expr(2), self.body(less));
                format!("{{% with {name} = {value} %}}{body}{{% endwith %}}")
            }
            // The same many times over: lists that hold lists, texts that grow.
            12 => self.stmt(0).repeat(1 + self.below(40)),
            13 => {
                let grow =
                    self.of(&["[X, X]", "X + X", "X ~ X", "{'a': X, 'b': X}", "[X]", "X * 9"]);
                let grow = grow.replace('X', name);
                format!("{{% set {name} = {grow} %}}").repeat(1 + self.below(60))
            }
            14 => {
                self.of(&["{% break %}", "{% continue %}", "text \n", "{# c #}", "{% x %}"]).into()
            }
            _ => format!("{{{{ {} }}}}", self.expr(4)),
        }
    }

    fn expr(&mut self, depth: usize) -> String {
        let Some(less) = depth.checked_sub(1) else { return self.leaf() };
        match self.below(15) {
            0 | 1 => self.leaf(),
            2 | 3 => {
                let op = self.of(OPERATORS);
                format!("({} {op} {})", self.expr(less), self.expr(less))
            }
            4 | 5 => format!("({} | {})", self.expr(less), self.of(FILTERS)),
            6 => format!("({} | {})", self.expr(less), self.filter_with(less)),
            7 => format!("({} is {})", self.expr(less), self.of(CHECKS)),
            8 | 9 => {
                let (of, method) = (self.expr(less), self.of(METHODS));
                match self.below(3) {
                    0 => format!("({of}).{method}()"),
                    1 => format!("({of}).{method}({})", self.expr(less)),
                    _ => format!("({of}).{method}({}, {})", self.expr(less), self.expr(less)),
                }
            }
            10 => format!("[{}, {}]", self.expr(less), self.expr(less)),
            11 => format!("{{{}: {}}}", self.leaf(), self.expr(less)),
            12 => format!("({})[{}]", self.expr(less), self.expr(less)),
            13 => format!("({})[{}:{}:{}]", self.expr(less), self.leaf(), self.leaf(), self.leaf()),
            _ => format!(
                "{}({})",
                self.of(&["range", "dict", "a", "b", "loop", "ns", "caller"]),
                self.expr(less)
            ),
        }
    }

    fn filter_with(&mut self, depth: usize) -> String {
        let name = self.of(&[
            "indent",
            "center",
            "batch",
            "slice",
            "join",
            "replace",
            "tojson",
            "truncate",
            "format",
            "map",
            "select",
            "selectattr",
            "groupby",
            "sort",
            "sum",
            "default",
            "round",
            "trim",
        ]);
        match self.below(4) {
            0 => format!("{name}({})", self.expr(depth)),
            1 => format!("{name}({}, {})", self.expr(depth), self.expr(depth)),
            2 => format!("{name}(indent={}, attribute={})", self.expr(depth), self.leaf()),
            _ => format!("{name}('{}')", self.of(FILTERS)),
        }
    }

    fn leaf(&mut self) -> String {
        match self.below(3) {
            0 => self.of(NAMES).into(),
            1 => self.of(LEAVES).into(),
            _ => self.of(VARIABLES).into(),
        }
    }

    fn messages(&mut self) -> Value {
        let count = 1 + self.below(4);
        let message = |random: &mut Self| {
            let content = random.json(2);
            json!({"role": random.of(&["user", "assistant", "tool"]), "content": content})
        };
        (0..count).map(|_| message(self)).collect()
    }

    fn json(&mut self, depth: usize) -> Value {
        match (self.below(7), depth.checked_sub(1)) {
            (0, _) => Value::Null,
            (1, _) => json!(self.below(1000)),
            (2, Some(less)) => (0..self.below(5)).map(|_| self.json(less)).collect(),
            (3, Some(less)) => json!({"a": self.json(less), "role": self.json(less)}),
            (4, _) => json!(1.5e300),
            (5, _) => json!("\u{F0000}<|x|>é\n".repeat(self.below(2000))),
            _ => json!(self.of(&["", "text", "a b\nc", "%s", "{}", "</s>"])),
        }
    }
}

const NAMES: &[&str] = &["a", "b", "c", "ns", "x"];
const VARIABLES: &[&str] = &[
    "messages",
    "messages[0].content",
    "given",
    "loop",
    "loop.index",
    "ns.a",
    "caller",
    "varargs",
];
const LEAVES: &[&str] = &[
    "0",
    "1",
    "-1",
    "7",
    "1000000000",
    "170141183460469231731687303715884105727",
    "0.5",
    "1e308",
    "none",
    "true",
    "''",
    "'a'",
    "'%9999s'",
    "'{:>999}'",
    "'a,b'",
    "'é🔥'",
    "[]",
    "[1, 'a']",
    "{}",
    "('a',)",
    "range(999)",
    "99 * [1]",
    "'ab' * 999",
    "undefined_name",
    "namespace",
];
const OPERATORS: &[&str] = &[
    "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or",
    "if",
];
const FILTERS: &[&str] = &[
    "abs",
    "capitalize",
    "dictsort",
    "escape",
    "first",
    "float",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "max",
    "min",
    "pprint",
    "reverse",
    "round",
    "safe",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "missing",
];
const CHECKS: &[&str] = &[
    "defined",
    "mapping",
    "iterable",
    "sequence",
    "string",
    "odd",
    "divisibleby(0)",
    "in [1]",
    "eq(messages)",
    "lt(1)",
    "sameas(x)",
    "lower",
    "callable",
    "missing",
];
const METHODS: &[&str] = &[
    "strip",
    "lstrip",
    "split",
    "rsplit",
    "splitlines",
    "replace",
    "join",
    "format",
    "count",
    "find",
    "rindex",
    "partition",
    "center",
    "zfill",
    "title",
    "startswith",
    "upper",
    "items",
    "keys",
    "get",
    "values",
    "index",
    "append",
    "cycle",
    "changed",
    "isdigit",
    "removeprefix",
];
