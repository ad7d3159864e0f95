//! What comes out under a grammar, whatever the model wants.

use std::sync::Arc;

use ingle_text::{
    GrammarBudget, GrammarError, GrammarSource, GrammarSpec, Reasoned, ReasoningFormat,
};
use serde_json::{Value, json};

use crate::walk::{EOS, End, allowed, compile, factory, spec, tokenizer, walk};

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "tags": { "type": "array", "items": { "enum": ["a", "b/c", "d\"e"] }, "maxItems": 3 },
            "home": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/home" }] }
        },
        "required": ["name", "age", "tags", "home"],
        "additionalProperties": false,
        "$defs": { "home": {
            "type": "object",
            "properties": { "x": { "type": "number", "minimum": -99, "maximum": 99 }, "ok": { "type": "boolean" } },
            "required": ["x", "ok"],
            "additionalProperties": false
        } }
    })
}

fn assert_person(text: &str, seed: u64) {
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("seed {seed}: {error}: {text}"));
    let fields = value.as_object().unwrap();
    assert_eq!(fields.len(), 4, "seed {seed}: {text}");
    assert!(fields["name"].as_str().unwrap().chars().count() <= 12, "seed {seed}: {text}");
    assert!((0..=150).contains(&fields["age"].as_i64().unwrap()), "seed {seed}: {text}");
    let tags = fields["tags"].as_array().unwrap();
    assert!(tags.len() <= 3, "seed {seed}: {text}");
    assert!(tags.iter().all(|tag| ["a", "b/c", "d\"e"].contains(&tag.as_str().unwrap())));
    let home = &fields["home"];
    assert!(home.is_null() || (home["x"].is_number() && home["ok"].is_boolean()), "{text}");
}

#[test]
fn test_json_of_a_schema_comes_out_of_any_model() {
    let grammar = compile(GrammarSource::JsonSchema(person()));
    for seed in 0..200 {
        let (text, end) = walk(&mut grammar.start(), seed, 120);
        assert_eq!(end, End::Finished, "seed {seed}: {text}");
        assert_person(&text, seed);
    }
}

#[test]
fn test_a_json_object_comes_out_and_is_closed_when_the_model_wants() {
    let grammar = compile(GrammarSource::JsonObject);
    for seed in 0..100 {
        let (text, end) = walk(&mut grammar.start(), seed, 40);
        if end == End::Finished {
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}: {text}"));
            assert!(value.is_object(), "seed {seed}: {text}");
        }
    }
}

#[test]
fn test_white_space_runs_out() {
    // Only white space where it is allowed: it must end after a line break and an indent.
    let list =
        json!({ "type": "array", "items": { "type": "boolean" }, "minItems": 3, "maxItems": 3 });
    let grammar = compile(GrammarSource::JsonSchema(list));
    let tokenizer = tokenizer();
    let mut state = grammar.start();
    let mut num_in_row = 0;
    for _ in 0..400 {
        let ids = allowed(&state.mask().unwrap());
        let is_space = |id: &&u32| {
            let bytes = tokenizer.token_bytes(**id).unwrap();
            !bytes.is_empty() && bytes.iter().all(|byte| b" \t\r\n".contains(byte))
        };
        let id = match ids.iter().find(is_space) {
            Some(&id) => {
                num_in_row += 1;
                id
            }
            None => {
                num_in_row = 0;
                ids[0]
            }
        };
        assert!(num_in_row <= 60, "white space does not end");
        if EOS.contains(&id) {
            return;
        }
        state.accept(id).unwrap();
        if state.is_finished() {
            return;
        }
    }
    panic!("the list was never closed");
}

/// How many tokens of white space alone a model puts into JSON that takes as much of it as it can: of the
/// white space that the mask allows it takes the token with the fewest bytes.
#[test]
fn test_a_model_that_loves_white_space_wastes_few_tokens() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "array",
        "items": { "type": "boolean" }, "minItems": 2, "maxItems": 2 }, "b": { "type": "null" } },
        "required": ["a", "b"], "additionalProperties": false });
    let tokenizer = tokenizer();
    let bytes = |id: u32| tokenizer.token_bytes(id).unwrap();
    let is_space = |id: &u32| {
        !EOS.contains(id)
            && !bytes(*id).is_empty()
            && bytes(*id).iter().all(u8::is_ascii_whitespace)
    };
    // {"a":[true,false],"b":null}: thirteen places between tokens of JSON, and none after the end.
    let places = 12;
    for (first, most) in [(b' ', 1), (b'\n', 21), (b'\t', 0)] {
        let mut state = compile(GrammarSource::JsonSchema(schema.clone())).start();
        let (mut text, mut wasted, mut row) = (Vec::new(), 0, 0);
        while !state.may_end() {
            let ids = allowed(&state.mask().unwrap());
            let spaces: Vec<u32> = ids.iter().copied().filter(is_space).collect();
            let fits = |id: &&u32| row > 0 || bytes(**id)[0] == first;
            let space = spaces.iter().filter(fits).min_by_key(|id| bytes(**id).len());
            let closing = |id: &&u32| bytes(**id).len() == 1 && b"]},:".contains(&bytes(**id)[0]);
            let id = space.or(ids.iter().find(closing)).copied().unwrap_or(ids[0]);
            row = if space.is_some() { row + 1 } else { 0 };
            wasted += usize::from(space.is_some());
            assert!(row <= most, "{row} tokens of white space in a row");
            text.extend(bytes(id));
            state.accept(id).unwrap();
        }
        let ids = allowed(&state.mask().unwrap());
        assert!(ids.iter().all(|id| EOS.contains(id)), "nothing follows the last brace");
        let value: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["b"], Value::Null);
        assert!(wasted <= most * places, "{wasted}: {:?}", String::from_utf8_lossy(&text));
    }
}

#[test]
fn test_regex_choice_and_lark_bind_the_whole_answer() {
    let grammar = compile(GrammarSource::Regex(r"[a-c]{2,5}/\d{3}".into()));
    for seed in 0..50 {
        let (text, end) = walk(&mut grammar.start(), seed, 20);
        let (letters, digits) = text.split_once('/').unwrap();
        assert_eq!(end, End::Finished);
        assert!((2..=5).contains(&letters.len()), "seed {seed}: {text}");
        assert_eq!(digits.len(), 3, "seed {seed}: {text}");
    }
    let choices = ["yes", "no", "a \"quoted\" \\ line\n", "yes, but", "\u{7f}é💩"];
    let grammar = compile(GrammarSource::Choice(choices.map(String::from).to_vec()));
    let mut seen = std::collections::HashSet::new();
    for seed in 0..200 {
        let (text, _) = walk(&mut grammar.start(), seed, 20);
        assert!(choices.contains(&text.as_str()), "seed {seed}: {text:?}");
        seen.insert(text);
    }
    assert_eq!(seen.len(), choices.len());
    let sum = "start: number (\"+\" number)~1..3\nnumber: /[0-9]{1,3}/\n";
    let grammar = compile(GrammarSource::Lark(sum.into()));
    for seed in 0..50 {
        let (text, _) = walk(&mut grammar.start(), seed, 20);
        let terms: Vec<&str> = text.split('+').collect();
        assert!((2..=4).contains(&terms.len()), "seed {seed}: {text}");
        assert!(terms.iter().all(|term| term.parse::<u16>().is_ok()), "seed {seed}: {text}");
    }
}

#[test]
fn test_escapes_are_possible_and_the_end_is_the_end() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } },
        "required": ["a"], "additionalProperties": false });
    let grammar = compile(GrammarSource::JsonSchema(schema));
    let tokenizer = tokenizer();
    for text in [r#"{"a":"x/y"}"#, r#"{"a": "\"\\\n\u0041"}"#, "{\n  \"a\": \"ä💩\"\n}"] {
        let mut state = grammar.start();
        for id in tokenizer.encode(text, false).unwrap() {
            assert!(allowed(&state.mask().unwrap()).contains(&id), "{text}");
            state.accept(id).unwrap();
        }
        assert!(state.may_end(), "{text}");
        let ids = allowed(&state.mask().unwrap());
        let only_ends = ids.iter().all(|id| {
            let bytes = tokenizer.token_bytes(*id).unwrap();
            EOS.contains(id) || bytes.iter().all(|byte| b" \t\r\n".contains(byte))
        });
        assert!(only_ends, "{text}: {ids:?}");
    }
    // A grammar that ends exactly at a token of several characters.
    let mut state = compile(GrammarSource::Choice(vec!["the".into()])).start();
    for id in tokenizer.encode("the", false).unwrap() {
        state.accept(id).unwrap();
    }
    assert!(state.is_finished());
    assert_eq!(allowed(&state.mask().unwrap()), EOS);
    state.accept(EOS[1]).unwrap();
    assert_eq!(allowed(&state.mask().unwrap()), EOS);
}

#[test]
fn test_positions_are_independent_and_a_wrong_token_hurts_one_alone() {
    let grammar = compile(GrammarSource::JsonSchema(person()));
    let mut first = grammar.start();
    let fresh = first.mask().unwrap();
    let (text, _) = walk(&mut first, 7, 120);
    assert_eq!(grammar.start().mask().unwrap(), fresh);
    let mut wrong = grammar.start();
    assert_eq!(wrong.accept(EOS[0]), Err(GrammarError::Token(EOS[0])));
    assert_eq!(wrong.accept(100_000), Err(GrammarError::Token(100_000)));
    assert_eq!(walk(&mut grammar.start(), 7, 120).0, text);
}

#[test]
fn test_equal_grammars_are_compiled_once() {
    let factory = factory();
    let budget = GrammarBudget::default();
    let one = factory.compile(&spec(GrammarSource::JsonSchema(person())), budget).unwrap();
    let two = factory.compile(&spec(GrammarSource::JsonSchema(person())), budget).unwrap();
    assert!(Arc::ptr_eq(&one, &two));
    let other = factory.compile(&spec(GrammarSource::JsonObject), budget).unwrap();
    assert!(!Arc::ptr_eq(&one, &other));
    for i in 0..80 {
        let choice = GrammarSource::Choice(vec![format!("c{i}")]);
        factory.compile(&spec(choice), budget).unwrap();
    }
    // The cache is bounded: the first has gone, and comes back equal in what it does.
    let again = factory.compile(&spec(GrammarSource::JsonSchema(person())), budget).unwrap();
    assert!(!Arc::ptr_eq(&one, &again));
    assert_eq!(one.start().mask().unwrap(), again.start().mask().unwrap());
}

#[test]
fn test_reasoning_is_free_and_the_rest_is_bound() {
    let tags = ReasoningFormat::detect("<think>").unwrap();
    let source = GrammarSource::Choice(vec!["yes".into(), "no".into()]);
    let make = |reasoned| GrammarSpec {
        field: "guided_choice",
        source: source.clone(),
        reasoning: Some((tags.clone(), reasoned)),
    };
    let factory = factory();
    let accepts = |reasoned, text: &str| {
        let grammar = factory.compile(&make(reasoned), GrammarBudget::default()).unwrap();
        let mut state = grammar.start();
        tokenizer().encode(text, false).unwrap().iter().all(|&id| state.accept(id).is_ok())
            && state.may_end()
    };
    for (reasoned, text, want) in [
        (Reasoned::Opened, "Is it {so}?\nNo <b> tag.\n</think>\n\nyes", true),
        (Reasoned::Opened, "</think>no", true),
        (Reasoned::Opened, "yes", false),
        (Reasoned::Opened, "hm</think>maybe", false),
        (Reasoned::Allowed, "<think>hm</think>\nyes", true),
        (Reasoned::Allowed, "no", true),
        (Reasoned::Allowed, "hm no", false),
    ] {
        assert_eq!(accepts(reasoned, text), want, "{reasoned:?} {text:?}");
    }
}
