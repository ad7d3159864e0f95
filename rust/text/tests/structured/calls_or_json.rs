//! Tools beside a schema: the answer is calls, or JSON that fits, in every format.

use std::sync::Arc;

use ingle_text::{
    AnswerParser, AnswerPiece, AnswerRules, CallPlace, GrammarBudget, GrammarFactory,
    GrammarSource, GrammarState, Tokenizer, ToolFormat, ToolGrammar, ToolRules, ToolSpec,
};
use serde_json::{Value, json};

use crate::walk::{EOS, End, FORMATS, ROWS, factory, functions, spec, tokenizer, walk};

fn tools(strict: bool) -> Vec<ToolSpec> {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": { "$ref": "#/$defs/city" },
            // A property's name is no keyword, nor is what stands in a value.
            "const": { "$ref": "#/$defs/day" },
        },
        "required": ["city", "const"],
        "additionalProperties": false,
        "$defs": { "city": { "enum": ["Bonn", "#/$defs/day"] }, "day": { "enum": [1, 2] } }
    });
    vec![
        ToolSpec { name: "weather".into(), parameters: Some(weather), strict },
        ToolSpec { name: "stop".into(), parameters: None, strict },
    ]
}

fn closed() -> Value {
    json!({
        "type": "object",
        "properties": { "name": { "enum": ["stop", "Ann"] }, "age": { "enum": [7, 8] } },
        "required": ["name", "age"],
        "additionalProperties": false
    })
}

fn grammar(format: ToolFormat, strict: bool, parallel: bool, schema: Value) -> ToolGrammar {
    ToolGrammar::new(format, tools(strict), parallel, false, &tokenizer())
        .or_answer(schema)
        .unwrap()
}

fn start(grammar: ToolGrammar) -> GrammarState {
    let source = GrammarSource::Tools(grammar);
    factory().compile(&spec(source), GrammarBudget::default()).unwrap().start()
}

fn accepts(grammar: &ToolGrammar, text: &str) -> bool {
    let mut state = start(grammar.clone());
    let ids = tokenizer().encode(text, false).unwrap();
    ids.iter().all(|&id| state.accept(id).is_ok()) && state.may_end()
}

/// Calls as the format spells them.
fn spelt(format: ToolFormat, calls: &[(&str, &str)]) -> String {
    let object = |key: &str| -> Vec<String> {
        let spell = |(name, arguments): &(&str, &str)| {
            format!("{{\"name\": \"{name}\", \"{key}\": {arguments}}}")
        };
        calls.iter().map(spell).collect()
    };
    match format {
        ToolFormat::Hermes => {
            let one = |call: &String| format!("<tool_call>\n{call}\n</tool_call>");
            object("arguments").iter().map(one).collect::<Vec<_>>().join("\n")
        }
        ToolFormat::SmolLm2 => {
            format!("<tool_call>[{}]</tool_call>", object("arguments").join(", "))
        }
        ToolFormat::Llama3 => object("parameters").concat(),
        ToolFormat::Mistral => format!("[TOOL_CALLS][{}]", object("arguments").join(", ")),
        ToolFormat::MistralNamed => {
            let one =
                |(name, arguments): &(&str, &str)| format!("[TOOL_CALLS]{name}[ARGS]{arguments}");
            calls.iter().map(one).collect()
        }
        ToolFormat::Granite => format!("<|tool_call|>[{}]", object("arguments").join(", ")),
        ToolFormat::Phi4Mini | ToolFormat::Phi4MiniSystem => {
            format!("<|tool_call|>[{}]<|/tool_call|>", object("arguments").join(", "))
        }
        other => panic!("{other:?} is tested in blocks.rs"),
    }
}

/// Names and arguments of the calls in a text, and the content, whether it comes whole or not.
fn read(format: ToolFormat, text: &str) -> (Vec<(String, String)>, String) {
    let tools = functions(&["weather", "stop"]);
    let tools = Some(ToolRules { format, tools, parallel: true, place: CallPlace::OrJson });
    let read = |parts: &[&str]| {
        let mut parser =
            AnswerParser::new(&AnswerRules { reasoning: None, tools: tools.clone() }, 1);
        let (mut calls, mut content) = (Vec::new(), String::new());
        parts.iter().for_each(|part| parser.push(part));
        parser.finish();
        for piece in parser.take() {
            match piece {
                AnswerPiece::Call { name, .. } => calls.push((name, String::new())),
                AnswerPiece::Arguments { index, text } => calls[index as usize].1.push_str(&text),
                AnswerPiece::Content(text) => content.push_str(&text),
                AnswerPiece::Reasoning(text) => panic!("{text}"),
            }
        }
        (calls, content)
    };
    let whole = read(&[text]);
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let parts: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(read(&parts), whole, "{text}");
    whole
}

const WEATHER: (&str, &str) = ("weather", r#"{"city": "Bonn", "const": 2}"#);
const BAD: (&str, &str) = ("weather", r#"{"city": "Rome", "const": 2}"#);

#[test]
fn test_the_answer_is_calls_or_json_that_fits() {
    for format in FORMATS {
        for strict in [false, true] {
            let grammar = grammar(format, strict, true, closed());
            let accepts = |text: &str| accepts(&grammar, text);
            let context = format!("{format:?} strict {strict}");
            assert!(accepts(r#"{"name": "Ann", "age": 7}"#), "{context}");
            assert!(accepts(r#"{"name":"stop","age":8}"#), "{context}");
            assert!(!accepts(r#"{"name": "Ann", "age": 9}"#), "{context}");
            assert!(!accepts("Hello"), "{context}");
            assert!(accepts(&spelt(format, &[WEATHER])), "{context}");
            assert!(accepts(&spelt(format, &[("stop", "{}")])), "{context}");
            assert!(!accepts(&spelt(format, &[("rm", "{}")])), "{context}");
            assert_eq!(accepts(&spelt(format, &[BAD])), !strict, "{context}");
            let two = spelt(format, &[WEATHER, ("stop", "{}")]);
            assert_eq!(accepts(&two), format != ToolFormat::Llama3, "{context}");
            let both = spelt(format, &[WEATHER]) + r#"{"name": "Ann", "age": 7}"#;
            assert!(!accepts(&both), "{context}");
        }
        let single = grammar(format, true, false, closed());
        assert!(accepts(&single, &spelt(format, &[WEATHER])), "{format:?}");
        assert!(!accepts(&single, &spelt(format, &[WEATHER, ("stop", "{}")])), "{format:?}");
    }
}

#[test]
fn test_any_model_gives_calls_or_json() {
    for format in FORMATS {
        let (mut num_calls, mut num_answers) = (0, 0);
        for seed in 0..30 {
            let mut state = start(grammar(format, true, true, closed()));
            let (text, end) = walk(&mut state, seed, 300);
            let context = format!("{format:?} seed {seed}: {text}");
            assert_eq!(end, End::Finished, "{context}");
            let (calls, content) = read(format, &text);
            assert_eq!(calls.is_empty(), !content.is_empty(), "{context}");
            num_calls += calls.len();
            for (name, arguments) in &calls {
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                match name.as_str() {
                    "stop" => assert_eq!(arguments, json!({}), "{context}"),
                    "weather" => {
                        let city = &arguments["city"];
                        assert!(city == "Bonn" || city == "#/$defs/day", "{context}");
                        assert!(arguments["const"] == 1 || arguments["const"] == 2, "{context}");
                    }
                    other => panic!("{context}: {other}"),
                }
            }
            if calls.is_empty() {
                let answer: Value = serde_json::from_str(&content).unwrap();
                assert!(answer["age"] == 7 || answer["age"] == 8, "{context}");
                num_answers += 1;
            }
        }
        assert!(num_calls > 0 && num_answers > 0, "{format:?}: {num_calls}, {num_answers}");
    }
}

#[test]
fn test_strings_of_the_answer_are_no_calls() {
    for format in FORMATS {
        let call = spelt(format, &[WEATHER]);
        for value in [
            json!({ "said": call }),
            json!([call, call]),
            json!(call),
            json!({ "name": "stop", "age": 7 }),
            json!({ "name": "stop" }),
            json!({ "name": "stop", "parameters": "none" }),
            json!({ "age": 7, "name": "stop" }),
        ] {
            let text = value.to_string();
            assert_eq!(read(format, &text), (vec![], text.clone()), "{format:?}");
            // Space in front is no part of the answer.
            assert_eq!(
                read(format, &format!("\r\n  {text}")),
                (vec![], text.clone()),
                "{format:?}"
            );
        }
        let calls =
            [WEATHER, ("stop", "{}")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        let num_calls = if format == ToolFormat::Llama3 { 1 } else { 2 };
        let text = spelt(format, &[WEATHER, ("stop", "{}")][..num_calls]);
        assert_eq!(read(format, &text), (calls[..num_calls].to_vec(), String::new()), "{text}");
    }
}

#[test]
fn test_an_answer_that_could_break_a_strict_tool_is_refused_where_calls_have_no_marker() {
    let open = json!({ "type": "object" });
    let mut with_parameters = closed();
    with_parameters["properties"]["parameters"] = json!({ "type": "object" });
    let mut with_patterns = closed();
    with_patterns["patternProperties"] = json!({ "^a": { "type": "object" } });
    for format in FORMATS {
        for strict in [false, true] {
            let made = |schema: &Value| {
                ToolGrammar::new(format, tools(strict), true, false, &tokenizer())
                    .or_answer(schema.clone())
            };
            assert!(made(&closed()).is_ok());
            for schema in [&open, &with_parameters, &with_patterns] {
                let is_refused = strict && format == ToolFormat::Llama3;
                assert_eq!(made(schema).is_err(), is_refused, "{format:?} {strict} {schema}");
            }
        }
        let any = grammar(format, format != ToolFormat::Llama3, true, open.clone());
        assert!(accepts(&any, r#"{"a": {"b": [1, 2]}}"#), "{format:?}");
        assert!(accepts(&any, &spelt(format, &[WEATHER])), "{format:?}");
    }
}

#[test]
fn test_a_schema_at_fault_is_not_blamed_on_a_tool() {
    let source =
        GrammarSource::Tools(grammar(ToolFormat::Hermes, true, true, json!({ "type": 5 })));
    let error = factory().compile(&spec(source), GrammarBudget::default()).unwrap_err();
    assert!(!error.to_string().contains("weather"), "{error}");
}

#[test]
fn test_a_marker_that_is_a_special_token_opens_a_call_beside_a_schema() {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/qwen3/tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut added = file["added_tokens"][0].clone();
    added["id"] = 388.into();
    added["content"] = "[TOOL_CALLS]".into();
    file["added_tokens"].as_array_mut().unwrap().push(added);
    let tokenizer = Arc::new(Tokenizer::from_json(file.to_string().as_bytes(), None).unwrap());
    let array = json!({ "type": "array", "items": { "type": "integer" } });
    let grammar = ToolGrammar::new(ToolFormat::Mistral, tools(true), true, false, &tokenizer);
    let source = GrammarSource::Tools(grammar.or_answer(array).unwrap());
    let factory = GrammarFactory::start(Arc::clone(&tokenizer), ROWS, &EOS).unwrap();
    let compiled = factory.compile(&spec(source), GrammarBudget::default()).unwrap();
    let accepts = |marker: &[u32], text: &str| {
        let mut state = compiled.start();
        let text = tokenizer.encode(text, false).unwrap();
        [marker, &text].concat().iter().all(|&id| state.accept(id).is_ok()) && state.may_end()
    };
    let call = r#"[{"name": "stop", "arguments": {}}]"#;
    assert!(accepts(&[388], call));
    assert!(!accepts(&[388], "[1, 2]"));
    assert!(accepts(&[], "[1, 2]"));
    assert!(!accepts(&[], call));
    assert!(!accepts(&[], &format!("[TOOL_CALLS]{call}")));
}
