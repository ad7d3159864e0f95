//! Grammars that are meant to hurt: each is refused with the field's name, in time, and the next
//! request is served. A stack that overflows would end this binary.

use std::time::{Duration, Instant};

use ingle_text::{GrammarBudget, GrammarFactory, GrammarSource, TextError};
use serde_json::{Value, json};

use crate::walk::{Random, factory, spec, walk};

/// Compiles; whatever the answer, it must come in time, and a mask of it too.
fn compile_in_time(factory: &GrammarFactory, source: GrammarSource) -> Result<(), String> {
    let budget = GrammarBudget { max_time: Duration::from_secs(10), ..GrammarBudget::default() };
    let started = Instant::now();
    let result = factory.compile(&spec(source.clone()), budget);
    let text = format!("{source:?}");
    let text: String = text.chars().take(100).collect();
    let waited = started.elapsed();
    assert!(waited < budget.max_time + Duration::from_secs(1), "{waited:?} for {text}");
    match result {
        Ok(grammar) => {
            // A walk may end early with an error, never with a panic.
            let mut state = grammar.start();
            for _ in 0..3 {
                let Ok(mask) = state.mask() else { break };
                let first = (0..388).find(|id| mask[id / 32] & (1 << (id % 32)) != 0);
                let Some(id) = first else { break };
                if state.accept(id as u32).is_err() {
                    break;
                }
            }
            Ok(())
        }
        Err(TextError::Input { field, message }) => {
            assert_eq!(field, "response_format");
            assert!(!message.is_empty() && !message.contains('\n') && message.len() < 1000);
            Err(message)
        }
        Err(other) => panic!("{other} for {text}"),
    }
}

fn assert_serves(factory: &GrammarFactory) {
    let source = GrammarSource::Choice(vec!["fine".into()]);
    let grammar = factory.compile(&spec(source), GrammarBudget::default()).unwrap();
    assert_eq!(walk(&mut grammar.start(), 1, 9).0, "fine");
}

#[test]
fn test_bad_regexes_are_refused() {
    let factory = factory();
    let bad =
        ["a**b(", "(", ")", "[", "a{5,2}", "(?=a)b", "(?<=a)b", "(?<!a)b", r"(a)\1", "a\\", ""];
    for regex in bad {
        let refused = compile_in_time(&factory, GrammarSource::Regex(regex.into()));
        assert!(refused.is_err(), "{regex}");
    }
    assert_serves(&factory);
}

#[test]
fn test_costly_regexes_cost_little() {
    let factory = factory();
    let mut regexes = vec![
        "(a*)*b".to_owned(),
        "(a+)+$".to_owned(),
        "((a{1,100}){1,100}){1,100}".to_owned(),
        "(x+x+)+y".to_owned(),
        "a{1,1000000}".to_owned(),
        "(.*a){50}".to_owned(),
        r"(\w|\d|\s){0,5000}".to_owned(),
        r"\p{L}{1,1000}".to_owned(),
        "(a?){3000}a{3000}".to_owned(),
        "[ab]*a[ab]{20000}".to_owned(),
    ];
    regexes.push("(".repeat(5000) + "a" + &")".repeat(5000));
    regexes.push("(a|".repeat(240) + "b" + &")".repeat(240));
    regexes.push("[ab][cd]".repeat(10_000));
    regexes.push("(a|b)?".repeat(10_000));
    regexes.push("a".repeat(200_000));
    regexes.push((0..20_000).map(|i| format!("w{i}")).collect::<Vec<_>>().join("|"));
    for regex in regexes {
        let started = Instant::now();
        let result = compile_in_time(&factory, GrammarSource::Regex(regex.clone()));
        let name: String = regex.chars().take(40).collect();
        println!("{:>9.1?} {name} {result:?}", started.elapsed());
    }
    assert_serves(&factory);
}

fn nested(depth: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..depth).fold(json!({ "type": "string" }), |inner, _| wrap(inner))
}

#[test]
fn test_bad_schemas_are_refused() {
    let factory = factory();
    let circle = json!({ "$ref": "#/$defs/a",
        "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } });
    let bad = [
        json!({ "type": 5 }),
        json!({ "type": "strng" }),
        json!({ "type": ["string", 7] }),
        json!({ "$ref": "#/$defs/missing" }),
        json!({ "$ref": "http://example.com/schema.json" }),
        json!({ "$ref": 4 }),
        circle,
        json!({ "type": "object", "properties": 3 }),
        json!({ "type": "string", "pattern": "a**b(" }),
        json!({ "type": "string", "pattern": "(?<=x)y" }),
        json!({ "type": "string", "minLength": 5, "maxLength": 2 }),
        json!({ "type": "integer", "minimum": 5, "maximum": 2 }),
        json!({ "type": "array", "minItems": 1e9 }),
        json!({ "type": "string", "minLength": 100_000_000 }),
        json!({ "not": { "minLength": 3 } }),
        json!({ "type": "array", "uniqueItems": true }),
        json!({ "if": { "type": "string" }, "then": { "minLength": 3 } }),
        json!({ "type": "object", "x-guidance": { "whitespace_pattern": " *" } }),
        json!(false),
        json!([]),
        json!("string"),
        nested(120, |inner| json!({ "type": "array", "items": inner })),
    ];
    for schema in bad {
        let text = schema.to_string();
        let refused = compile_in_time(&factory, GrammarSource::JsonSchema(schema));
        let text: String = text.chars().take(80).collect();
        println!("{text}: {refused:?}");
        assert!(refused.is_err(), "{text}");
    }
    assert_serves(&factory);
}

#[test]
fn test_costly_schemas_cost_little() {
    let factory = factory();
    let many = |count: usize, value: Value| -> Value {
        (0..count)
            .map(|i| (format!("p{i}"), value.clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let chain: serde_json::Map<String, Value> = (0..900)
        .map(|i| {
            let next = json!({ "type": "object", "properties": { "n": { "$ref": format!("#/$defs/d{}", i + 1) } } });
            (format!("d{i}"), next)
        })
        .chain([("d900".to_owned(), json!({ "type": "null" }))])
        .collect();
    let all_of: serde_json::Map<String, Value> = (0..12)
        .map(|i| {
            let next = format!("#/$defs/d{}", i + 1);
            (format!("d{i}"), json!({ "allOf": [{ "$ref": next }, { "$ref": next }] }))
        })
        .chain([("d12".to_owned(), json!({ "type": "object", "properties": many(50, json!({})) }))])
        .collect();
    let cases = [
        json!({ "type": "object", "properties": many(1000, json!({ "type": "string" })) }),
        json!({ "type": "object", "properties": many(1000, json!({ "type": "string" })),
            "minProperties": 1, "additionalProperties": false }),
        json!({ "type": "object", "properties": many(300, json!({ "type": "object", "properties": many(20, json!({})) })) }),
        json!({ "$ref": "#/$defs/d0", "$defs": chain }),
        json!({ "$ref": "#/$defs/d0", "$defs": all_of }),
        json!({ "enum": (0..10_000).map(|i| format!("value number {i}")).collect::<Vec<_>>() }),
        json!({ "type": "string", "minLength": 10_000, "maxLength": 10_000 }),
        json!({ "type": "array", "minItems": 10_000, "maxItems": 10_000, "items": { "type": "number" } }),
        json!({ "type": "array", "maxItems": 10_000, "items": { "type": "array", "maxItems": 10_000, "items": {} } }),
        json!({ "type": "number", "multipleOf": 0.000_000_1 }),
        json!({ "type": "integer", "multipleOf": 999_983 }),
        json!({ "type": "integer", "minimum": -1e300, "maximum": 1e300 }),
        json!({ "type": "string", "pattern": "(.*a){50}" }),
        json!({ "type": "string", "format": "uri" }),
        nested(45, |inner| json!({ "type": "array", "items": inner })),
        nested(45, |inner| json!({ "anyOf": [inner, { "type": "null" }] })),
        nested(
            14,
            |inner| json!({ "anyOf": [inner.clone(), { "type": "array", "items": inner }] }),
        ),
        json!({ "allOf": (0..300).map(|i| json!({ "properties": { format!("p{i}"): { "type": "string" } } })).collect::<Vec<_>>() }),
        json!({ "oneOf": (0..300).map(|i| json!({ "properties": { format!("p{i}"): { "const": i } }, "required": [format!("p{i}")] })).collect::<Vec<_>>() }),
        json!({ "type": "object", "patternProperties": many(300, json!({ "type": "string" })), "properties": many(300, json!({})) }),
        json!({ "type": "object", "properties": { "t": { "$ref": "#" } } }),
    ];
    for schema in cases {
        let started = Instant::now();
        let name: String = schema.to_string().chars().take(60).collect();
        let result = compile_in_time(&factory, GrammarSource::JsonSchema(schema));
        println!("{:>9.1?} {name} {result:?}", started.elapsed());
    }
    assert_serves(&factory);
}

#[test]
fn test_bad_lark_is_refused_and_costly_lark_costs_little() {
    let factory = factory();
    for bad in [
        "start: missing",
        "no_start: \"a\"",
        "start: \"a\" (",
        "start: /(/",
        "start: \"a",
        "",
        "start: start",
        "start: %json { \"type\": 5 }",
        "start: %json { \"type\": \"object\", \"x-guidance\": {} }",
        "start: @other",
        "start: <no_such_token>",
        "%import nothing.AT_ALL\nstart: \"a\"",
    ] {
        let refused = compile_in_time(&factory, GrammarSource::Lark(bad.into()));
        println!("{bad:?}: {refused:?}");
        assert!(refused.is_err(), "{bad}");
    }
    let chain = |open: &str, count: usize| {
        let rules = (0..count).map(|i| format!("{open}{i}: {open}{} \"x\"\n", i + 1));
        format!("start: {open}0\n{}{open}{count}: \"y\"\n", rules.collect::<String>())
    };
    let costly = [
        format!("start: {}\"a\"{}", "(".repeat(3_900), ")".repeat(3_900)),
        format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000)),
        chain("r", 3_900),
        chain("T", 3_900),
        "start: start start | \"a\"".to_owned(),
        "start: a*\na: b*\nb: \"x\"*".to_owned(),
        "start: (\"a\"? \"b\"?)~0..9000".to_owned(),
        "start: \"a\"~1000000000".to_owned(),
        "start: ((\"a\"~1000)~1000)~1000".to_owned(),
        "start: /a{1,1000}/ start?".to_owned(),
        format!("start: {}", (0..50_000).map(|i| format!("\"{i}\"")).collect::<Vec<_>>().join("|")),
        format!("start: \"{}\"", "é".repeat(100_000)),
        "start: /é/\n".repeat(3_000),
    ];
    for lark in costly {
        let started = Instant::now();
        let name: String = lark.chars().take(60).collect();
        let result = compile_in_time(&factory, GrammarSource::Lark(lark));
        println!("{:>9.1?} {name:?} {result:?}", started.elapsed());
    }
    assert_serves(&factory);
}

#[test]
fn test_size_and_time_are_bounded() {
    let factory = factory();
    let tight = GrammarBudget { max_bytes: 100, ..GrammarBudget::default() };
    let sources = [
        GrammarSource::Regex("a".repeat(101)),
        GrammarSource::Lark(format!("start: \"{}\"", "a".repeat(100))),
        GrammarSource::Choice(vec!["a".repeat(60), "b".repeat(60)]),
        GrammarSource::JsonSchema(json!({ "const": "a".repeat(101) })),
    ];
    for source in sources {
        let refused = factory.compile(&spec(source), tight).unwrap_err().to_string();
        assert!(refused.contains("at most 100"), "{refused}");
    }
    let no_time = GrammarBudget { max_time: Duration::ZERO, ..GrammarBudget::default() };
    let refused = factory.compile(&spec(GrammarSource::JsonObject), no_time).unwrap_err();
    assert!(refused.to_string().contains("0 ms"), "{refused}");
    assert_serves(&factory);
}

/// Pieces of regexes, schemas and Lark, put together without sense.
fn nonsense(random: &mut Random, pieces: &[&str], most: usize) -> String {
    let count = random.below(most) + 1;
    (0..count).map(|_| pieces[random.below(pieces.len())]).collect()
}

fn random_schema(random: &mut Random, depth: usize) -> Value {
    let leaf = depth == 0 || random.below(3) == 0;
    let value = |random: &mut Random| -> Value {
        let numbers =
            [json!(0), json!(-1), json!(2.5), json!(7), json!(1000), json!("x"), json!(null)];
        numbers[random.below(numbers.len())].clone()
    };
    let mut fields = serde_json::Map::new();
    let types = ["string", "integer", "number", "object", "array", "null", "boolean", "any"];
    if random.below(4) > 0 {
        fields.insert("type".into(), types[random.below(types.len())].into());
    }
    for _ in 0..random.below(4) {
        let counts = [
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "multipleOf",
            "minProperties",
            "maxProperties",
            "const",
            "default",
        ];
        fields.insert(counts[random.below(counts.len())].into(), value(random));
    }
    if random.below(6) == 0 {
        fields.insert("pattern".into(), nonsense(random, &REGEX, 6).into());
    }
    if random.below(6) == 0 {
        fields.insert("$ref".into(), ["#", "#/$defs/a", "#/properties/p0"][random.below(3)].into());
    }
    if !leaf {
        let inner: Vec<Value> =
            (0..random.below(4)).map(|_| random_schema(random, depth - 1)).collect();
        match random.below(5) {
            0 => fields.insert("anyOf".into(), inner.into()),
            1 => fields.insert("allOf".into(), inner.into()),
            2 => fields.insert("oneOf".into(), inner.into()),
            3 => fields.insert("items".into(), inner.into_iter().next().unwrap_or(json!(true))),
            _ => {
                let properties: serde_json::Map<String, Value> =
                    inner.into_iter().enumerate().map(|(i, s)| (format!("p{i}"), s)).collect();
                fields.insert("required".into(), json!(["p0", "q"]));
                fields.insert("$defs".into(), json!({ "a": random_schema(random, 0) }));
                fields.insert("properties".into(), properties.into())
            }
        };
    }
    fields.into()
}

const REGEX: [&str; 24] = [
    "a", "b", "(", ")", "[", "]", "*", "+", "?", "|", "{2}", "{1,300}", "{,5}", ".", "\\d", "\\b",
    "^", "$", "[^a-z]", "(?i)", "\\p{L}", "é", "(?:x|y)", "\\",
];
const LARK: [&str; 26] = [
    "start: ",
    "a: ",
    "T: ",
    "a",
    "T",
    "\"x\"",
    "/[a-z]+/",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "~2..4",
    "\n",
    " & ",
    "~ ",
    "%json {\"type\":\"object\"}",
    "%ignore /\\s+/",
    "@main",
    "<[3]>",
    "%regex {}",
    "[lazy]",
    "[max_tokens=3]",
    "%llguidance {}",
    "a::_",
];

#[test]
fn test_nonsense_never_hurts() {
    let factory = factory();
    let cases: u64 = std::env::var("INGLE_FUZZ_CASES").map_or(400, |cases| cases.parse().unwrap());
    for seed in 0..cases {
        let mut random = Random(seed);
        let source = match seed % 3 {
            0 => GrammarSource::Regex(nonsense(&mut random, &REGEX, 30)),
            1 => GrammarSource::JsonSchema(random_schema(&mut random, 4)),
            _ => GrammarSource::Lark(format!("start: {}", nonsense(&mut random, &LARK, 30))),
        };
        let budget = GrammarBudget::default();
        let started = Instant::now();
        let result = factory.compile(&spec(source.clone()), budget);
        assert!(started.elapsed() < budget.max_time, "seed {seed}: {source:?}");
        let Ok(grammar) = result else { continue };
        let mut state = grammar.start();
        for _ in 0..12 {
            let started = Instant::now();
            let Ok(mask) = state.mask() else { break };
            assert!(started.elapsed() < Duration::from_secs(1), "seed {seed}: {source:?}");
            let ids = crate::walk::allowed(&mask);
            assert!(!ids.is_empty(), "seed {seed}: {source:?}");
            let id = ids[random.below(ids.len())];
            if state.accept(id).is_err() || crate::walk::EOS.contains(&id) {
                break;
            }
        }
    }
    assert_serves(&factory);
}

#[test]
fn test_many_optional_properties_can_be_written() {
    for count in [100, 300, 1000] {
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|i| (format!("p{i}"), json!({ "type": "boolean" }))).collect();
        let schema = json!({ "type": "object", "properties": properties });
        for closed in [false, true] {
            let mut schema = schema.clone();
            schema["additionalProperties"] = (!closed).into();
            let source = GrammarSource::JsonSchema(schema);
            let started = Instant::now();
            let grammar = factory().compile(&spec(source), GrammarBudget::default()).unwrap();
            let compiled = started.elapsed();
            let mut state = grammar.start();
            let copied = started.elapsed() - compiled;
            let started = Instant::now();
            let text = format!("{{\"p0\": true, \"p1\": false, \"p{}\": true}}", count - 1);
            let ids = crate::walk::tokenizer().encode(&text, false).unwrap();
            for &id in &ids {
                assert!(crate::walk::allowed(&state.mask().unwrap()).contains(&id), "{count}");
                state.accept(id).unwrap();
            }
            println!(
                "{count} {closed}: {compiled:?} {copied:?} {:?} a token",
                started.elapsed() / ids.len() as u32
            );
        }
    }
}
