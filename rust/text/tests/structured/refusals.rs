//! What is said of grammars that cannot be compiled: in our words, with the part that is at fault.

use ingle_text::{GrammarBudget, GrammarSource, TextError, ToolFormat, ToolGrammar, ToolSpec};
use serde_json::{Value, json};

use crate::walk::{factory, spec, tokenizer};

fn refusals(sources: impl IntoIterator<Item = GrammarSource>) -> Vec<String> {
    let factory = factory();
    let refuse = |source: GrammarSource| match factory
        .compile(&spec(source.clone()), GrammarBudget::default())
    {
        Err(TextError::Input { message, .. }) => message,
        other => panic!("{source:?}: {other:?}"),
    };
    sources.into_iter().map(refuse).collect()
}

fn of_schemas(schemas: &[Value]) -> Vec<String> {
    refusals(schemas.iter().cloned().map(GrammarSource::JsonSchema))
}

#[test]
fn test_a_schema_that_nothing_can_match_is_refused_by_the_part_at_fault() {
    let in_object = |schema: Value| json!({ "type": "object", "required": ["a"], "properties": { "a": schema, "b": { "type": "null" } } });
    let found = of_schemas(
        &[
            in_object(json!({ "type": "integer", "minimum": 5, "maximum": 3 })),
            in_object(json!({ "type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6 })),
            in_object(json!({ "type": "string", "pattern": "^a$", "format": "ipv4" })),
            in_object(
                json!({ "type": "array", "minItems": 1, "items": { "enum": ["a"], "minLength": 2 } }),
            ),
            in_object(json!({ "allOf": [{ "type": "string" }, { "type": "integer" }] })),
            in_object(json!({ "$ref": "#/$defs/x" })),
        ][..5],
    );
    let nothing = "nothing can match it";
    assert_eq!(
        found,
        [
            format!("properties.a: {nothing}: a lower bound is above an upper bound"),
            format!("properties.a: {nothing}: no multiple of multipleOf lies between its bounds"),
            format!(
                "properties.a: {nothing}: no string fits its pattern, format, lengths and values together"
            ),
            format!(
                "properties.a.items: {nothing}: no value of enum or const fits its other keywords"
            ),
            format!("properties.a: {nothing}: its types exclude each other"),
        ]
    );
}

#[test]
fn test_an_optional_part_that_nothing_matches_is_not_at_fault() {
    let schema = json!({ "type": "object", "required": ["b"], "properties": {
        "a": { "type": "integer", "minimum": 5, "maximum": 3 },
        "b": { "anyOf": [{ "const": 1, "minimum": 2 }, { "type": "string", "pattern": "x$y" }] } } });
    let [found] = &of_schemas(&[schema])[..] else { panic!("one") };
    assert!(found.starts_with("properties.b.anyOf[1]: \\b, \\B, and ^ or $ anywhere"), "{found}");
}

#[test]
fn test_numbers_and_patterns_that_the_library_does_not_take_are_refused_by_their_path() {
    let found = of_schemas(&[
        json!({ "type": "array", "items": { "multipleOf": 1e-20 } }),
        json!({ "type": "array", "items": { "multipleOf": 1e300 } }),
        json!({ "properties": { "a": { "pattern": "a\\b" } } }),
        json!({ "properties": { "a": { "pattern": "\\p{Foo}" } } }),
        json!({ "allOf": [{ "multipleOf": 9973 }, { "multipleOf": 0.7919 }, { "multipleOf": 7907 }] }),
    ]);
    let limits = "at most 10000 with the decimal point left out, and at most 8 decimals";
    assert_eq!(
        found,
        [
            format!("items.multipleOf: is 1e-20, {limits}"),
            format!("items.multipleOf: is 1e+300, {limits}"),
            "properties.a.pattern: \\b and \\B cannot be enforced".to_owned(),
            "properties.a.pattern: invalid regex: Unicode property not found".to_owned(),
            "multipleOf: the values that may apply to one number have a common multiple of too many \
             digits"
                .to_owned(),
        ]
    );
}

#[test]
fn test_all_of_with_too_many_combinations_is_refused_in_our_words() {
    let options = |i: usize| -> Vec<Value> {
        (0..4)
            .map(|j| json!({ "properties": { format!("k{i}{j}"): { "type": "string" } } }))
            .collect()
    };
    let all: Vec<Value> = (0..12).map(|i| json!({ "anyOf": options(i) })).collect();
    let schema =
        json!({ "type": "object", "properties": { "x": { "type": "object", "allOf": all } } });
    let [found] = &of_schemas(&[schema])[..] else { panic!("one") };
    assert!(
        found.ends_with("allOf, anyOf and $ref make too many combinations to compile"),
        "{found}"
    );
}

#[test]
fn test_a_tool_is_named_with_the_part_of_its_parameters() {
    let tool = |name: &str, schema: Value| ToolSpec {
        name: name.into(),
        parameters: Some(
            json!({ "type": "object", "properties": { "p": schema }, "required": ["p"] }),
        ),
        strict: true,
    };
    let tools = vec![
        tool("right", json!({ "type": "string" })),
        tool("wrong", json!({ "type": "string", "maxLength": 1, "format": "date" })),
    ];
    let grammar = ToolGrammar::new(ToolFormat::Hermes, tools, true, true, &tokenizer());
    let [found] = &refusals([GrammarSource::Tools(grammar)])[..] else { panic!("one") };
    assert_eq!(
        found,
        "wrong: properties.p: nothing can match it: no string fits its pattern, format, lengths and \
         values together"
    );
}

#[test]
fn test_grammars_and_regexes_of_clients_are_refused_by_their_place_in_our_words() {
    let lark = |text: &str| GrammarSource::Lark(text.into());
    let found = refusals([
        lark("a"),
        lark("start: b"),
        lark("start: \"a"),
        lark("start: <nothing>"),
        lark("start: <[999999]>"),
        lark("start: %json {\"type\": \"strng\"}"),
        lark("%json {"),
        GrammarSource::Regex("a\\b".into()),
        GrammarSource::Regex("a$b".into()),
    ]);
    let anchors = "\\b, \\B, and ^ or $ anywhere but at the ends of a pattern, cannot be enforced";
    assert_eq!(
        found,
        [
            "line 1, column 2: expected ':', found a line feed",
            "line 1, column 8: unknown name: \"b\"",
            "line 1, column 10: no part of a grammar begins here",
            "line 1, column 8: unknown special token: \"<nothing>\"",
            "line 1, column 8: a token id is outside the vocabulary",
            "line 1, column 8: %json: type must be a JSON type",
            "%json is not followed by valid JSON",
            anchors,
            anchors,
        ]
    );
}

#[test]
fn test_divisors_whose_digits_binary_fractions_miss_are_taken_or_named() {
    let factory = factory();
    for divisor in [1.0, 0.1, 0.01, 0.001, 0.0001, 0.05, 0.07, 0.25, 0.5, 1.1, 1e-8] {
        let source = GrammarSource::JsonSchema(json!({ "type": "number", "multipleOf": divisor }));
        factory.compile(&spec(source), GrammarBudget::default()).expect("a divisor");
    }
    let [found] = &of_schemas(&[json!({ "multipleOf": 0.57 })])[..] else { panic!("one") };
    assert!(found.starts_with("multipleOf: 0.57 cannot be enforced"), "{found}");
}
