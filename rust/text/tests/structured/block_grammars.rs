//! Calls in markup and messages of the harmony format that grammars force, read back by the parser of
//! the same format.

use std::sync::Arc;

use ingle_text::{
    AnswerParser, AnswerPiece, AnswerRules, CallPlace, GrammarBudget, GrammarFactory,
    GrammarSource, GrammarSpec, GrammarState, Reasoned, ReasoningFormat, ReasoningStart, Tokenizer,
    ToolFormat, ToolGrammar, ToolRules, ToolSpec,
};
use serde_json::{Value, json};

use crate::blocks::{BLOCKS, spelt};
use crate::walk::{EOS, End, ROWS, factory, spec, tokenizer, walk};

fn specs(strict: bool) -> Vec<ToolSpec> {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": { "$ref": "#/$defs/city" },
            "days": { "type": "integer", "minimum": 1, "maximum": 14 },
            "code": { "type": "string", "pattern": "^[A-Z]{2,3}$" },
            "note": { "type": ["string", "null"], "maxLength": 4 },
            "tags": { "type": "array", "items": { "enum": ["a", "b"] }, "maxItems": 3 }
        },
        "required": ["city", "days", "code"],
        "additionalProperties": false,
        "$defs": { "city": { "enum": ["Bonn", "Ulm"] } }
    });
    vec![
        ToolSpec { name: "weather".into(), parameters: Some(weather), strict },
        ToolSpec { name: "stop".into(), parameters: None, strict },
    ]
}

const ALL: [ToolFormat; 10] = {
    let [a, b, c, d, e, f, g, h, i] = BLOCKS;
    [a, b, c, d, e, f, g, h, i, ToolFormat::Harmony]
};

fn harmony(format: ToolFormat) -> Option<ReasoningFormat> {
    (format == ToolFormat::Harmony).then_some(ReasoningFormat::Harmony)
}

fn start(format: ToolFormat, tools: Vec<ToolSpec>, parallel: bool, required: bool) -> GrammarState {
    let grammar = ToolGrammar::new(format, tools, parallel, required, &tokenizer());
    start_of(format, grammar)
}

fn start_of(format: ToolFormat, grammar: ToolGrammar) -> GrammarState {
    let reasoning = harmony(format).map(|format| (format, Reasoned::Allowed));
    let spec = GrammarSpec { reasoning, ..spec(GrammarSource::Tools(grammar)) };
    factory().compile(&spec, GrammarBudget::default()).unwrap().start()
}

/// Names and arguments of the calls in a text, and the content.
fn read(format: ToolFormat, text: &str, place: CallPlace) -> (Vec<(String, Value)>, String) {
    let tools: Arc<[ToolSpec]> = specs(true).into();
    let rules = AnswerRules {
        reasoning: harmony(format).map(|format| (format, ReasoningStart::Unopened)),
        tools: Some(ToolRules { format, tools, parallel: true, place }),
    };
    let mut parser = AnswerParser::new(&rules, 1);
    parser.push(text);
    parser.finish();
    let (mut calls, mut content): (Vec<(String, String)>, _) = (Vec::new(), String::new());
    for piece in parser.take() {
        match piece {
            AnswerPiece::Call { name, .. } => calls.push((name, String::new())),
            AnswerPiece::Arguments { index, text } => calls[index as usize].1.push_str(&text),
            AnswerPiece::Content(text) => content.push_str(&text),
            AnswerPiece::Reasoning(_) => {}
        }
    }
    let parsed = |(name, text): (String, String)| {
        (name, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    };
    (calls.into_iter().map(parsed).collect(), content)
}

fn assert_fits(name: &str, value: &Value, context: &str) {
    let fields = value.as_object().unwrap_or_else(|| panic!("{context}"));
    if name == "stop" {
        return assert!(fields.is_empty(), "{context}");
    }
    assert_eq!(name, "weather", "{context}");
    assert!(["Bonn", "Ulm"].contains(&value["city"].as_str().unwrap()), "{context}");
    assert!((1..=14).contains(&value["days"].as_i64().unwrap()), "{context}");
    let code = value["code"].as_str().unwrap();
    assert!((2..=3).contains(&code.len()), "{context}");
    assert!(code.chars().all(|c| c.is_ascii_uppercase()), "{context}");
    if let Some(note) = fields.get("note").and_then(Value::as_str) {
        assert!(note.chars().count() <= 4, "{context}");
    }
    let is_tag = |tag: &Value| ["a", "b"].contains(&tag.as_str().unwrap());
    assert!(fields.get("tags").is_none_or(|tags| tags.as_array().unwrap().iter().all(is_tag)));
    assert!(fields.len() <= 5, "{context}");
}

#[test]
fn test_a_required_call_comes_out_of_any_model() {
    for format in ALL {
        let mut several = 0;
        for parallel in [false, true] {
            for seed in 0..6 {
                let mut state = start(format, specs(false), parallel, true);
                let (text, end) = walk(&mut state, seed, 400);
                let context = format!("{format:?} seed {seed}: {text}");
                // A model that knows nothing may reason on.
                if end == End::Limit && format == ToolFormat::Harmony {
                    continue;
                }
                assert_eq!(end, End::Finished, "{context}");
                let (calls, content) = read(format, &text, CallPlace::Alone);
                assert!(content.is_empty(), "{context}: {content}");
                assert!(!calls.is_empty() && (parallel || calls.len() == 1), "{context}");
                several += usize::from(calls.len() > 1);
                for (name, value) in &calls {
                    assert_fits(name, value, &context);
                }
            }
        }
        assert_eq!(several > 0, format != ToolFormat::Harmony, "{format:?}");
    }
}

fn accepts(state: &mut GrammarState, text: &str) -> bool {
    let ids = tokenizer().encode(text, false).unwrap();
    ids.iter().all(|&id| state.accept(id).is_ok()) && state.may_end()
}

fn weather(city: &str) -> (&'static str, Value) {
    ("weather", json!({ "city": city, "days": 3, "code": "AB" }))
}

#[test]
fn test_strict_tools_bind_calls_and_nothing_else() {
    for format in BLOCKS {
        let make = |parallel| start(format, specs(true), parallel, false);
        let (good, bad) = (spelt(format, &[weather("Ulm")]), spelt(format, &[weather("Rome")]));
        assert!(accepts(&mut make(true), "No call, <tool> [x] {y}.\n"), "{format:?}");
        assert!(accepts(&mut make(true), &format!("Sure.\n{good}")), "{format:?}: {good}");
        assert!(!accepts(&mut make(true), &format!("Sure.\n{bad}")), "{format:?}: {bad}");
        let unknown = spelt(format, &[("rm", json!({}))]);
        assert!(!accepts(&mut make(true), &unknown), "{format:?}");
        let two = spelt(format, &[weather("Ulm"), ("stop", json!({}))]);
        assert!(accepts(&mut make(true), &two), "{format:?}: {two}");
        assert!(!accepts(&mut make(false), &two), "{format:?}");
    }
    let make = || start(ToolFormat::Harmony, specs(true), true, false);
    let lead = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
    let to = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>";
    let good = r#"{"city": "Ulm", "days": 3, "code": "AB"}"#;
    for text in [
        "<|channel|>final<|message|>No call.".to_owned(),
        format!("{lead}<|channel|>final<|message|>"),
        format!("{lead}{to}{good}"),
        format!("{lead}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{to}{good}"),
        format!(" to=functions.weather<|channel|>commentary json<|message|>{good}"),
    ] {
        assert!(accepts(&mut make(), &text), "{text}");
    }
    for text in [
        "No header.".to_owned(),
        format!("{to}{{\"city\": \"Rome\"}}"),
        to.replace("weather", "rm") + "{}",
    ] {
        assert!(!accepts(&mut make(), &text), "{text}");
    }
}

#[test]
fn test_beside_strict_tools_others_are_free() {
    let free = ToolSpec { strict: false, ..specs(true)[1].clone() };
    let any = ("stop", json!({ "x": "1 < 2", "y": [1] }));
    for format in BLOCKS {
        let tools = vec![specs(true)[0].clone(), free.clone()];
        let text = spelt(format, std::slice::from_ref(&any));
        assert!(accepts(&mut start(format, tools, true, false), &text), "{format:?}: {text}");
    }
}

#[test]
fn test_calls_or_json_come_out_of_any_model() {
    let answer = json!({
        "type": "object",
        "properties": { "ok": { "type": "boolean" } },
        "required": ["ok"],
        "additionalProperties": false
    });
    for format in ALL {
        let (mut calls_seen, mut answers_seen) = (0, 0);
        let make = || {
            let grammar = ToolGrammar::new(format, specs(true), true, false, &tokenizer());
            start_of(format, grammar.or_answer(answer.clone()).unwrap())
        };
        let header = if format == ToolFormat::Harmony { "<|channel|>final<|message|>" } else { "" };
        assert!(accepts(&mut make(), &format!("{header}{{\"ok\": true}}")), "{format:?}");
        for seed in 0..16 {
            let (text, end) = walk(&mut make(), seed, 400);
            if end == End::Limit {
                continue;
            }
            let context = format!("{format:?} seed {seed}: {text}");
            let (calls, content) = read(format, &text, CallPlace::OrJson);
            if calls.is_empty() {
                let value: Value = serde_json::from_str(&content).expect(&context);
                assert!(value["ok"].is_boolean(), "{context}");
                answers_seen += 1;
            } else {
                assert!(content.trim().is_empty(), "{context}");
                calls.iter().for_each(|(name, value)| assert_fits(name, value, &context));
                calls_seen += 1;
            }
        }
        // Of harmony's few first tokens these seeds take the one that begins a call.
        let is_seen = answers_seen > 0 || format == ToolFormat::Harmony;
        assert!(calls_seen > 0 && is_seen, "{format:?}: {calls_seen} {answers_seen}");
    }
}

#[test]
fn test_a_schema_binds_the_final_message_of_harmony() {
    let source = GrammarSource::Choice(vec!["yes".into(), "no".into()]);
    let make = |reasoned| {
        let reasoning = Some((ReasoningFormat::Harmony, reasoned));
        let spec = GrammarSpec { reasoning, ..spec(source.clone()) };
        factory().compile(&spec, GrammarBudget::default()).unwrap().start()
    };
    let last = "<|end|><|start|>assistant<|channel|>final<|message|>yes";
    for (reasoned, good, bad) in [
        (Reasoned::Allowed, "<|channel|>final<|message|>yes".to_owned(), "yes"),
        (
            Reasoned::Allowed,
            "<|channel|>final <|constrain|>json<|message|>no".to_owned(),
            "<|channel|>final<|message|>maybe",
        ),
        (
            Reasoned::Allowed,
            format!("<|channel|>analysis<|message|>maybe{last}"),
            "<|channel|>analysis<|message|>maybe",
        ),
        (Reasoned::Opened, format!("maybe{last}"), "yes"),
        (Reasoned::Closed, "no".to_owned(), "maybe"),
    ] {
        assert!(accepts(&mut make(reasoned), &good), "{reasoned:?} {good}");
        assert!(!accepts(&mut make(reasoned), bad), "{reasoned:?} {bad}");
    }
}

#[test]
fn test_what_cannot_be_enforced_in_markup_is_refused_by_name() {
    let refuse = |format, parameters: Value| {
        let tools = vec![ToolSpec { name: "f".into(), parameters: Some(parameters), strict: true }];
        let grammar = ToolGrammar::new(format, tools, true, true, &tokenizer());
        let made =
            factory().compile(&spec(GrammarSource::Tools(grammar)), GrammarBudget::default());
        made.unwrap_err().to_string()
    };
    let with = |schema: Value| json!({ "type": "object", "properties": { "a": schema } });
    for (parameters, words) in [
        (with(json!({ "type": "string", "format": "iri" })), "f: a: format \"iri\""),
        (with(json!({ "type": "string", "pattern": "^a|b$" })), "f: a: a pattern"),
        (with(json!({ "enum": ["</parameter>"] })), "f: a: \"</parameter>\""),
        (
            with(json!({ "type": "string", "anyOf": [{ "minLength": 1 }, { "maxLength": 9 }] })),
            "f: a: anyOf",
        ),
        (json!({ "properties": { "a>": {} } }), "f: a parameter's name \"a>\""),
        (json!({ "anyOf": [with(json!({}))] }), "f: anyOf"),
    ] {
        let error = refuse(ToolFormat::Qwen3Coder, parameters);
        assert!(error.contains(words), "{error}");
    }
    // The same formats with JSON arguments take them.
    let error = refuse(ToolFormat::Olmo3, json!({ "properties": { "a b": {} } }));
    assert!(error.contains("f: a parameter's name \"a b\""), "{error}");
}

/// The tiny tokenizer with markers as special tokens, as the models have them that write these formats.
fn with_special(markers: &[&str]) -> Arc<Tokenizer> {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/qwen3/tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for (id, marker) in (388..).zip(markers) {
        let mut added = file["added_tokens"][0].clone();
        added["id"] = id.into();
        added["content"] = (*marker).into();
        file["added_tokens"].as_array_mut().unwrap().push(added);
    }
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), None).unwrap();
    assert!(
        markers.iter().all(|marker| tokenizer.is_special(tokenizer.token_to_id(marker).unwrap()))
    );
    Arc::new(tokenizer)
}

/// The ids of a text in which markers are special tokens.
fn marked(tokenizer: &Tokenizer, markers: &[&str], text: &str) -> Vec<u32> {
    let found = markers.iter().filter_map(|marker| Some((text.find(marker)?, *marker)));
    let Some((at, marker)) = found.min_by_key(|(at, _)| *at) else {
        return tokenizer.encode(text, false).unwrap();
    };
    let mut ids = tokenizer.encode(&text[..at], false).unwrap();
    ids.push(tokenizer.token_to_id(marker).unwrap());
    ids.extend(marked(tokenizer, markers, &text[at + marker.len()..]));
    ids
}

#[test]
fn test_markers_that_are_special_tokens_are_known_by_their_ids() {
    let to = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>";
    let lead = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
    let formats =
        [ToolFormat::Harmony, ToolFormat::DeepSeekV31, ToolFormat::Glm45, ToolFormat::Gemma4];
    for format in formats {
        let markers = format.markers();
        let tokenizer = with_special(markers);
        let factory = GrammarFactory::start(Arc::clone(&tokenizer), ROWS, &EOS).unwrap();
        let call = |city| match format {
            ToolFormat::Harmony => {
                format!("{lead}{to}{{\"city\": \"{city}\", \"days\": 3, \"code\": \"AB\"}}")
            }
            _ => spelt(format, &[weather(city)]),
        };
        for required in [true, false] {
            let make = || {
                let tools = specs(true);
                let grammar = ToolGrammar::new(format, tools, true, required, &tokenizer);
                let reasoning = harmony(format).map(|format| (format, Reasoned::Allowed));
                let spec = GrammarSpec { reasoning, ..spec(GrammarSource::Tools(grammar)) };
                factory.compile(&spec, GrammarBudget::default()).unwrap().start()
            };
            let takes = |text: &str| {
                let mut state = make();
                let ids = marked(&tokenizer, markers, text);
                ids.iter().all(|&id| state.accept(id).is_ok()) && state.may_end()
            };
            assert!(takes(&call("Ulm")), "{format:?} {required}");
            assert!(!takes(&call("Rome")), "{format:?} {required}");
            // The same letters are no marker.
            let mut state = make();
            let spelled = tokenizer.encode(&call("Ulm"), false).unwrap();
            let is_taken = spelled.iter().all(|&id| state.accept(id).is_ok());
            assert!(!is_taken || (!required && format != ToolFormat::Harmony), "{format:?}");
        }
    }
}

/// Whether the grammar of one required call takes these arguments of the function `f`.
fn gemma4_takes(schema: &Value, arguments: &str) -> bool {
    let tool = ToolSpec { name: "f".into(), parameters: Some(schema.clone()), strict: true };
    let mut state = start(ToolFormat::Gemma4, vec![tool], false, true);
    let text = format!("<|tool_call>call:f{{{arguments}}}<tool_call|>");
    let ids = tokenizer().encode(&text, false).unwrap();
    ids.iter().all(|&id| state.accept(id).is_ok()) && state.may_end()
}

#[test]
fn test_gemma4_values_within_values_follow_their_schemas() {
    let tree = json!({
        "type": "object",
        "properties": {
            "node": { "$ref": "#/$defs/node" },
            "pick": { "anyOf": [{ "type": "boolean" }, { "const": "all" }] },
            "free": {}
        },
        "required": ["node"],
        "$defs": { "node": { "type": "object", "additionalProperties": false, "properties": {
            "size": { "type": "number" },
            "next": { "type": "array", "items": { "$ref": "#/$defs/node" }, "minItems": 1, "maxItems": 2 }
        } } }
    });
    for arguments in [
        "node:{}",
        "node:{size:1.5,next:[{},{size:-2}]},pick:true",
        r#"node:{},pick:<|"|>all<|"|>"#,
        r#"node:{},free:{a:[1,<|"|>x, }<|"|>,null],b:{}}"#,
        r#"node:{},free:<|"|><|"|>"#,
    ] {
        assert!(gemma4_takes(&tree, arguments), "{arguments}");
    }
    for arguments in [
        "",
        "node:[]",
        "node:{size:one}",
        "node:{next:[]}",
        "node:{next:[{},{},{}]}",
        "node:{next:[{}],size:1}",
        r#"node:{},pick:<|"|>none<|"|>"#,
        "pick:true",
        "node:{},free:word",
        r#"node:{},more:1"#,
    ] {
        assert!(!gemma4_takes(&tree, arguments), "{arguments}");
    }
    let open = json!({ "type": "object" });
    assert!(gemma4_takes(&open, "") && gemma4_takes(&open, "a:1,b_2:[false]"));
    for (schema, reason) in [
        (json!({ "properties": { "a b": {} } }), "\"a b\" cannot be written"),
        (json!({ "properties": { "a": { "not": {} } } }), "a: not cannot be enforced"),
        (json!({ "properties": { "a": { "enum": [[1]] } } }), "a: a list or an object among"),
        (json!({ "properties": { "a": { "items": {}, "uniqueItems": true } } }), "uniqueItems"),
    ] {
        let tool = ToolSpec { name: "f".into(), parameters: Some(schema), strict: true };
        let grammar = ToolGrammar::new(ToolFormat::Gemma4, vec![tool], false, true, &tokenizer());
        let spec = spec(GrammarSource::Tools(grammar));
        let error = factory().compile(&spec, GrammarBudget::default()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
