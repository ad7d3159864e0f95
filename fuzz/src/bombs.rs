//! Inputs that are small to send and dear to read: deep and wide JSON, templates, schemas, regexes and
//! grammars that unfold, texts of a megabyte that tokenizers get slow on.

use serde_json::{Value, json};

use crate::rng::Rng;

/// One input and the parser that it is for.
#[derive(Debug)]
pub struct Bomb {
    /// Its kind, for messages.
    pub kind: &'static str,
    /// What it is.
    pub input: Input,
}

/// Where an input goes.
#[derive(Debug)]
pub enum Input {
    /// A body of a request.
    Body(Vec<u8>),
    /// A chat template's source.
    Template(String),
    /// A JSON schema.
    Schema(Value),
    /// A regex that answers must match.
    Regex(String),
    /// A grammar.
    Lark(String),
    /// A prompt.
    Text(String),
}

/// The bomb of a number: kinds take turns, sizes grow with the number and vary with it as a seed.
#[must_use]
pub fn bomb(number: usize) -> Bomb {
    let (kind, make) = KINDS[number % KINDS.len()];
    let mut rng = Rng::new(number as u64);
    // From some dozen to tens of thousands.
    let size = 16 << rng.below(11);
    Bomb { kind, input: make(size + rng.below(size), &mut rng) }
}

type Make = fn(usize, &mut Rng) -> Input;

/// Every kind, and what makes one of a size.
const KINDS: [(&str, Make); 30] = [
    ("body: lists in lists", |size, _| body(&"[".repeat(size), &"]".repeat(size))),
    ("body: objects in objects", |size, _| {
        body(&"{\"a\":".repeat(size), &format!("1{}", "}".repeat(size)))
    }),
    ("body: an open end", |size, _| Input::Body("[{\"a\":".repeat(size).into_bytes())),
    ("body: many empty objects", |size, _| body(&list("{}", size * 8), "")),
    ("body: many keys", |size, _| {
        let keys: Vec<String> = (0..size * 4).map(|key| format!("\"k{key}\":0")).collect();
        body(&format!("{{{}}}", keys.join(",")), "")
    }),
    ("body: one key many times", |size, _| body(&format!("{{{}}}", list("\"a\":1", size)), "")),
    ("body: long numbers", |size, _| body(&"9".repeat(size * 16), "")),
    ("body: escapes", |size, _| body(&format!("\"{}\"", "\\u0041".repeat(size * 8)), "")),
    ("body: half surrogates", |size, _| body(&format!("\"{}\"", "\\ud800".repeat(size * 8)), "")),
    ("template: loops in loops", |size, _| {
        let depth = 2 + size % 8;
        let open: String = (0..depth).map(|i| format!("{{% for x{i} in range(9999) %}}")).collect();
        Input::Template(format!("{open}x{}", "{% endfor %}".repeat(depth)))
    }),
    ("template: lists that double", |size, _| {
        let doubled = "{% set x = [x, x] %}".repeat(10 + size % 60);
        Input::Template(format!("{{% set x = [1] %}}{doubled}{{{{ x | tojson }}}}"))
    }),
    ("template: texts that double", |size, _| {
        let doubled = "{% set x = x ~ x %}".repeat(10 + size % 60);
        Input::Template(format!("{{% set x = 'ab' %}}{doubled}{{{{ x | length }}}}"))
    }),
    ("template: wide formats", |size, rng| {
        let wide = ["{{ '%9999999s' % 'x' }}", "{{ 'x' * 99999999 }}", "{{ 'x'.center(9999999) }}"];
        Input::Template(rng.pick(&wide).repeat(1 + size % 40))
    }),
    ("template: deep expressions", |size, _| {
        Input::Template(format!("{{{{ {}1{} }}}}", "(".repeat(size), ")".repeat(size)))
    }),
    ("template: a macro that calls itself", |size, _| {
        let call = "{{ f(n + 1) }}".repeat(1 + size % 5);
        Input::Template(format!("{{% macro f(n) %}}{call}{{% endmacro %}}{{{{ f(0) }}}}"))
    }),
    ("template: replacements that grow", |size, _| {
        let grow = ".replace('x', 'xxxxxxxxxx')".repeat(3 + size % 12);
        Input::Template(format!("{{{{ 'x'{grow} }}}}"))
    }),
    ("schema: deep", |size, _| {
        let deep = (0..size.min(2000))
            .fold(json!({"type": "null"}), |inner, _| json!({"type": "array", "items": inner}));
        Input::Schema(deep)
    }),
    ("schema: many properties", |size, _| {
        let properties: serde_json::Map<String, Value> = (0..size)
            .map(|key| (format!("property{key}"), json!({"type": "string", "maxLength": key})))
            .collect();
        Input::Schema(json!({"type": "object", "properties": properties}))
    }),
    ("schema: alternatives of alternatives", |size, _| {
        let depth = 2 + size % 10;
        let wide = (0..depth).fold(
            json!({"type": "integer"}),
            |inner, _| json!({"anyOf": [inner, {"type": "array", "items": inner}]}),
        );
        Input::Schema(wide)
    }),
    ("schema: definitions that double", |size, _| {
        let depth = 5 + size % 40;
        let mut definitions = serde_json::Map::new();
        for level in 0..depth {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            let both = json!({"type": "array", "prefixItems": [next, next], "minItems": 2});
            definitions.insert(format!("d{level}"), both);
        }
        definitions.insert(format!("d{depth}"), json!({"type": "null"}));
        Input::Schema(json!({"$defs": definitions, "$ref": "#/$defs/d0"}))
    }),
    ("schema: counts in counts", |size, _| {
        let text = json!({"type": "string", "minLength": size, "maxLength": size * 2});
        Input::Schema(
            json!({"type": "array", "items": text, "minItems": size, "maxItems": size * 2}),
        )
    }),
    ("schema: a large enum", |size, _| {
        let values: Vec<String> = (0..size).map(|value| format!("{value}value{value}")).collect();
        Input::Schema(json!({"enum": values}))
    }),
    ("regex: counts in counts", |size, _| {
        let count = size % 1000;
        Input::Regex(format!("((a{{1,{count}}}){{1,{count}}}){{1,{count}}}"))
    }),
    ("regex: stars in stars", |size, _| {
        Input::Regex(format!("{}a{}$", "(".repeat(size % 300), "*)*".repeat(size % 300)))
    }),
    ("regex: a choice far from the end", |size, _| {
        Input::Regex(format!("(a|b)*a(a|b){{{}}}", size % 500))
    }),
    ("regex: all of Unicode", |size, _| {
        Input::Regex("(\\p{L}|\\p{N}|\\p{Greek}|[^a])".repeat(1 + size % 300))
    }),
    ("lark: ambiguous", |size, _| {
        let rules: String =
            (0..size % 200).map(|n| format!("r{n}: start start | /[a-z]/\n")).collect();
        let uses: Vec<String> = (0..size % 200).map(|n| format!("r{n}")).collect();
        Input::Lark(format!("start: s {}\ns: s s | /a*/\n{rules}", uses.join(" ")))
    }),
    ("text: one character", |_, rng| {
        let characters = ["a", " ", "0", "\n", "\u{301}", "🙂", "<", "\u{0}", "ab", "<|"];
        let one = *rng.pick(&characters);
        Input::Text(one.repeat(MEGABYTE / one.len()))
    }),
    ("text: special tokens", |_, rng| {
        let tokens = ["<|im_start|>", "<|im_end", "<|eos|><", "</think>"];
        let one = *rng.pick(&tokens);
        Input::Text(one.repeat(MEGABYTE / one.len()))
    }),
    ("text: anything", |_, rng| {
        let bytes: Vec<u8> = (0..MEGABYTE / 2).map(|_| rng.bits() as u8).collect();
        Input::Text(String::from_utf8_lossy(&bytes).into_owned())
    }),
];

const MEGABYTE: usize = 1 << 20;

/// A request with this where its user's name would be.
fn body(open: &str, close: &str) -> Input {
    let text = format!("{{\"prompt\":\"x\",\"user\":{open}{close}}}");
    Input::Body(text.into_bytes())
}

fn list(item: &str, count: usize) -> String {
    let items = vec![item; count].join(",");
    if item.contains(':') { items } else { format!("[{items}]") }
}
