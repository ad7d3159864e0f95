//! Tool calls that grammars force, read back by the parser of the same format.

use std::sync::Arc;

use ingle_text::{
    AnswerParser, AnswerPiece, AnswerRules, CallPlace, Detokenizer, GrammarBudget, GrammarFactory,
    GrammarSource, GrammarState, ReasoningFormat, ReasoningStart, Tokenizer, ToolFormat,
    ToolGrammar, ToolRules, ToolSpec,
};
use serde_json::{Value, json};

use crate::walk::{EOS, End, FORMATS, factory, functions, spec, tokenizer, walk};

fn specs(strict: bool) -> Vec<ToolSpec> {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": { "$ref": "#/$defs/city" },
            "days": { "type": "integer", "minimum": 1, "maximum": 14 }
        },
        "required": ["city", "days"],
        "additionalProperties": false,
        "$defs": { "city": { "enum": ["Bonn", "Ulm"] } }
    });
    let stop = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    vec![
        ToolSpec { name: "weather".into(), parameters: Some(weather), strict },
        ToolSpec { name: "stop".into(), parameters: Some(stop), strict },
    ]
}

fn start(format: ToolFormat, tools: Vec<ToolSpec>, parallel: bool, required: bool) -> GrammarState {
    let grammar = ToolGrammar::new(format, tools, parallel, required, &tokenizer());
    let source = GrammarSource::Tools(grammar);
    factory().compile(&spec(source), GrammarBudget::default()).unwrap().start()
}

/// Names and arguments of the calls in a text, and the content.
fn read(format: ToolFormat, text: &str) -> (Vec<(String, String)>, String) {
    let tools = functions(&["weather", "stop"]);
    let place = CallPlace::InText;
    let tools = Some(ToolRules { format, tools, parallel: true, place });
    let mut parser = AnswerParser::new(&AnswerRules { reasoning: None, tools }, 1);
    parser.push(text);
    parser.finish();
    let (mut calls, mut content) = (Vec::new(), String::new());
    for piece in parser.take() {
        match piece {
            AnswerPiece::Call { name, .. } => calls.push((name, String::new())),
            AnswerPiece::Arguments { index, text } => calls[index as usize].1.push_str(&text),
            AnswerPiece::Content(text) => content.push_str(&text),
            AnswerPiece::Reasoning(text) => panic!("{text}"),
        }
    }
    (calls, content)
}

fn assert_fits(name: &str, arguments: &str, context: &str) {
    let value: Value = serde_json::from_str(arguments)
        .unwrap_or_else(|error| panic!("{context}: {error}: {arguments}"));
    match name {
        "weather" => {
            assert!(["Bonn", "Ulm"].contains(&value["city"].as_str().unwrap()), "{context}");
            assert!((1..=14).contains(&value["days"].as_i64().unwrap()), "{context}");
            assert_eq!(value.as_object().unwrap().len(), 2, "{context}");
        }
        "stop" => assert_eq!(value, json!({}), "{context}"),
        other => panic!("{context}: {other}"),
    }
}

#[test]
fn test_a_required_call_comes_out_of_any_model() {
    for format in FORMATS {
        for parallel in [false, true] {
            let mut several = 0;
            for seed in 0..20 {
                let mut state = start(format, specs(false), parallel, true);
                let (text, end) = walk(&mut state, seed, 300);
                let context = format!("{format:?} seed {seed}: {text}");
                assert_eq!(end, End::Finished, "{context}");
                let (calls, content) = read(format, &text);
                assert!(content.is_empty(), "{context}: {content}");
                assert!(!calls.is_empty() && (parallel || calls.len() == 1), "{context}");
                several += usize::from(calls.len() > 1);
                for (name, arguments) in &calls {
                    assert_fits(name, arguments, &context);
                }
            }
            assert!(several == 0 || parallel);
        }
    }
}

#[test]
fn test_a_named_call_is_the_only_one_possible() {
    for format in FORMATS {
        let tools = specs(false).split_off(1);
        for seed in 0..10 {
            let (text, _) = walk(&mut start(format, tools.clone(), false, true), seed, 300);
            let (calls, _) = read(format, &text);
            assert_eq!(calls.len(), 1, "{text}");
            assert_fits("stop", &calls[0].1, &text);
            assert_eq!(calls[0].0, "stop", "{text}");
        }
    }
}

/// `stop`, with these parameters.
fn stop(parameters: Option<Value>, strict: bool) -> Vec<ToolSpec> {
    vec![ToolSpec { name: "stop".into(), parameters, strict }]
}

/// A call of `stop` as the format spells it.
fn stop_call(format: ToolFormat, arguments: &str) -> String {
    let call = |key: &str| format!("{{\"name\": \"stop\", \"{key}\": {arguments}}}");
    match format {
        ToolFormat::Hermes => format!("<tool_call>\n{}\n</tool_call>", call("arguments")),
        ToolFormat::SmolLm2 => format!("<tool_call>[{}]</tool_call>", call("arguments")),
        ToolFormat::Llama3 => call("parameters"),
        ToolFormat::Mistral => format!("[TOOL_CALLS][{}]", call("arguments")),
        ToolFormat::MistralNamed => format!("[TOOL_CALLS]stop[ARGS]{arguments}"),
        ToolFormat::Granite => format!("<|tool_call|>[{}]", call("arguments")),
        ToolFormat::Phi4Mini | ToolFormat::Phi4MiniSystem => {
            format!("<|tool_call|>[{}]<|/tool_call|>", call("arguments"))
        }
        other => panic!("{other:?} is tested in blocks.rs"),
    }
}

#[test]
fn test_a_function_without_parameters_is_called_without_arguments() {
    for format in FORMATS {
        for (strict, required) in [(false, true), (true, true), (true, false)] {
            let context = format!("{format:?} strict {strict} required {required}");
            let make = |parameters| start(format, stop(parameters, strict), true, required);
            let (bare, full) = (stop_call(format, "{}"), stop_call(format, r#"{"a": 1}"#));
            assert!(accepts(&mut make(None), &bare), "{context}");
            assert!(!accepts(&mut make(None), &full), "{context}");
            // An empty schema is fulfilled by any object.
            assert!(accepts(&mut make(Some(json!({}))), &bare), "{context}");
            assert!(accepts(&mut make(Some(json!({}))), &full), "{context}");
            assert!(!accepts(&mut make(Some(json!({}))), &stop_call(format, "1")), "{context}");
        }
        // Beside a strict tool, a function that is not binds nothing.
        let tools = [stop(None, false), specs(true)[..1].to_vec()].concat();
        let full = stop_call(format, r#"{"a": 1}"#);
        assert!(accepts(&mut start(format, tools, true, false), &full), "{format:?}");
        for seed in 0..5 {
            let (text, end) = walk(&mut start(format, stop(None, false), false, true), seed, 300);
            assert_eq!(end, End::Finished, "{format:?} seed {seed}: {text}");
            assert_eq!(read(format, &text).0, [("stop".to_owned(), "{}".to_owned())], "{text}");
        }
    }
}

#[test]
fn test_a_forced_call_has_no_content_wherever_it_is_cut() {
    let tags = ReasoningFormat::detect("{{ '<think>' }}{{ '</think>' }}").unwrap();
    for format in FORMATS {
        let tools = functions(&["stop"]);
        let tools = ToolRules { format, tools, parallel: true, place: CallPlace::Alone };
        let reasoning = Some((tags.clone(), ReasoningStart::Unopened));
        let rules = AnswerRules { reasoning, tools: Some(tools) };
        let call = stop_call(format, r#"{"a": 1}"#);
        for text in [call.clone(), format!("<think>hm</think>\n\n{call}")] {
            for end in 0..=text.len() {
                let mut parser = AnswerParser::new(&rules, 1);
                parser.push(&text[..end]);
                parser.finish();
                assert!(parser.has_only_calls());
                let is_content = |piece: &AnswerPiece| matches!(piece, AnswerPiece::Content(_));
                assert!(!parser.take().iter().any(is_content), "{format:?} {}", &text[..end]);
                assert_eq!(
                    parser.num_calls() == 1,
                    text[..end].contains("stop\"") || {
                        format == ToolFormat::MistralNamed && text[..end].contains("[ARGS]")
                    }
                );
            }
        }
    }
}

fn accepts(state: &mut GrammarState, text: &str) -> bool {
    let ids = tokenizer().encode(text, false).unwrap();
    ids.iter().all(|&id| state.accept(id).is_ok()) && state.may_end()
}

#[test]
fn test_strict_tools_bind_calls_and_nothing_else() {
    let good = r#"{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}"#;
    let bad = r#"{"name": "weather", "arguments": {"city": "Rome", "days": 3}}"#;
    let hermes =
        |call: &str| format!("Sure, {{let}} me <b>look</b>.\n<tool_call>\n{call}\n</tool_call>");
    let smol = |call: &str| format!("Sure.\n<tool_call>[{call}]</tool_call>");
    let mistral = |call: &str| format!("Sure. [TOOL_CALLS][{call}]");
    let wrap = |format, call: &str| match format {
        ToolFormat::Hermes => hermes(call),
        ToolFormat::SmolLm2 => smol(call),
        _ => mistral(call),
    };
    for format in [ToolFormat::Hermes, ToolFormat::SmolLm2, ToolFormat::Mistral] {
        let wrap = |call: &str| wrap(format, call);
        let make = || start(format, specs(true), true, false);
        assert!(accepts(&mut make(), "No call, <tool> [x] {y}.\n"), "{format:?}");
        assert!(accepts(&mut make(), &wrap(good)), "{format:?}");
        assert!(!accepts(&mut make(), &wrap(bad)), "{format:?}");
        assert!(!accepts(&mut make(), &wrap(r#"{"name": "rm", "arguments": {}}"#)), "{format:?}");
    }
    let llama = || start(ToolFormat::Llama3, specs(true), true, false);
    assert!(accepts(
        &mut llama(),
        r#"{"name": "weather", "parameters": {"city": "Ulm", "days": 3}}"#
    ));
    assert!(!accepts(&mut llama(), r#"{"name": "weather", "parameters": {"city": "Rome"}}"#));
    assert!(accepts(&mut llama(), "It rains in {Rome}."));
    let named = || start(ToolFormat::MistralNamed, specs(true), true, false);
    assert!(accepts(&mut named(), r#"Hm.[TOOL_CALLS]weather[ARGS]{"city": "Ulm", "days": 3}"#));
    assert!(!accepts(&mut named(), r#"Hm.[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 3}"#));
    // Two calls, and text after them.
    let two = format!(
        "{}\n{}",
        hermes(good),
        "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call> done"
    );
    assert!(accepts(&mut start(ToolFormat::Hermes, specs(true), true, false), &two));
    assert!(!accepts(&mut start(ToolFormat::Hermes, specs(true), false, false), &two));
}

#[test]
fn test_a_bad_tool_schema_is_refused_by_name() {
    let bad = [
        json!({ "type": 5 }),
        json!({ "properties": { "a": { "type": "string", "pattern": "(" } } }),
    ];
    for parameters in bad {
        let mut tools = specs(false);
        tools.push(ToolSpec { name: "broken".into(), parameters: Some(parameters), strict: false });
        let grammar = ToolGrammar::new(ToolFormat::Hermes, tools, true, true, &tokenizer());
        let source = GrammarSource::Tools(grammar.clone());
        let error = factory().compile(&spec(source), GrammarBudget::default()).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
    }
}

#[test]
fn test_schemas_that_bind_nothing_must_be_schemas() {
    let check = |parameters| {
        ToolSpec { name: "f".into(), parameters: Some(parameters), strict: false }.check()
    };
    for bad in [
        json!({ "type": 5 }),
        json!({ "type": ["string", "strng"] }),
        json!([]),
        json!({ "properties": [] }),
        json!({ "properties": { "a": { "pattern": "a**(" } } }),
        json!({ "properties": { "a": { "pattern": 7 } } }),
        json!({ "anyOf": [{ "items": { "type": "int" } }] }),
    ] {
        assert!(check(bad.clone()).is_err(), "{bad}");
    }
    for good in [
        json!({}),
        json!({ "type": "object", "properties": { "type": { "type": "string" } } }),
        json!({ "properties": { "a": { "pattern": "(?=a)b", "not": { "type": "null" } } } }),
        json!({ "type": ["object", "null"], "uniqueItems": true, "if": {}, "then": {} }),
    ] {
        assert_eq!(check(good.clone()), Ok(()), "{good}");
    }
}

#[test]
fn test_smollm2_gets_its_tools_in_the_system_message() {
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let user = json!([{ "role": "user", "content": "Hi" }]);
    let messages = ToolFormat::SmolLm2.messages_with_tools(&user, &tools).unwrap();
    assert_eq!(messages[0]["role"], "system");
    assert!(messages[0]["content"].as_str().unwrap().contains("\"name\":\"f\""));
    assert_eq!(messages[1], user[0]);
    let system =
        json!([{ "role": "system", "content": "Be kind." }, { "role": "user", "content": "Hi" }]);
    let messages = ToolFormat::SmolLm2.messages_with_tools(&system, &tools).unwrap();
    assert!(messages[0]["content"].as_str().unwrap().starts_with("Be kind.\n\n"));
    assert_eq!(messages.as_array().unwrap().len(), 2);
    assert_eq!(ToolFormat::Hermes.messages_with_tools(&user, &tools), None);
    // Calls of earlier answers are written as the model writes them.
    let called = json!({ "role": "assistant", "content": "", "tool_calls": [
        { "id": "1", "type": "function", "function": { "name": "f", "arguments": { "a": 1 } } }] });
    let messages =
        ToolFormat::SmolLm2.messages_with_tools(&json!([user[0], called]), &tools).unwrap();
    assert_eq!(messages[2].get("tool_calls"), None);
    let content = messages[2]["content"].as_str().unwrap();
    assert_eq!(content, r#"<tool_call>[{"name":"f","arguments":{"a":1}}]</tool_call>"#);
    assert_eq!(read(ToolFormat::SmolLm2, content).0, [("f".to_owned(), r#"{"a":1}"#.to_owned())]);
}

#[test]
fn test_phi_4_mini_gets_its_tools_as_a_key_of_the_system_message() {
    let format = ToolFormat::Phi4MiniSystem;
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let user = json!([{ "role": "user", "content": "Hi" }]);
    let messages = format.messages_with_tools(&user, &tools).unwrap();
    let system = json!({ "role": "system", "content": "", "tools": "[{\"name\":\"f\"}]" });
    assert_eq!(messages, json!([system, user[0]]));
    let called = json!({ "role": "assistant", "content": "", "tool_calls": [
        { "id": "1", "type": "function", "function": { "name": "f", "arguments": { "a": 1 } } }] });
    let kind = json!({ "role": "system", "content": "Be kind." });
    let messages = format.messages_with_tools(&json!([kind, user[0], called]), &tools).unwrap();
    assert_eq!(messages[0]["content"], "Be kind.");
    assert_eq!(messages[0]["tools"], system["tools"]);
    let content = messages[2]["content"].as_str().unwrap();
    let want = r#"<|tool_call|>[{"name":"f","arguments":{"a":1}}]<|/tool_call|>"#;
    assert_eq!((content, messages[2].get("tool_calls")), (want, None));
    assert_eq!(read(format, content).0, [("f".to_owned(), r#"{"a":1}"#.to_owned())]);
}

#[test]
fn test_markers_that_are_special_tokens_open_calls_and_stay_in_the_text() {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/qwen3/tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut added = file["added_tokens"][0].clone();
    added["id"] = 388.into();
    added["content"] = "[TOOL_CALLS]".into();
    file["added_tokens"].as_array_mut().unwrap().push(added);
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), None).unwrap();
    let tokenizer = Arc::new(tokenizer);
    assert!(tokenizer.is_special(388));
    let factory = GrammarFactory::start(Arc::clone(&tokenizer), 512, &EOS).unwrap();
    let compile = |required| {
        let grammar =
            ToolGrammar::new(ToolFormat::Mistral, specs(true), true, required, &tokenizer);
        factory.compile(&spec(GrammarSource::Tools(grammar)), GrammarBudget::default()).unwrap()
    };
    let call = r#"[{"name": "stop", "arguments": {}}]"#;
    let call = tokenizer.encode(call, false).unwrap();
    let spelt = tokenizer.encode("[TOOL_CALLS]", false).unwrap();
    assert!(!spelt.contains(&388), "user text is no marker");
    let accepts = |required, ids: &[u32]| {
        let mut state = compile(required).start();
        ids.iter().all(|&id| state.accept(id).is_ok()) && state.may_end()
    };
    let marked: Vec<u32> = [388].into_iter().chain(call.clone()).collect();
    assert!(accepts(true, &marked));
    assert!(!accepts(true, &[spelt, call].concat()));
    let hm = tokenizer.encode("Hm. ", false).unwrap();
    assert!(accepts(false, &[hm, marked.clone()].concat()));
    assert!(!accepts(false, &[388, 388]));
    // The parser must see the marker although special tokens are left out of the text.
    let mut text = String::new();
    let mut detokenizer = Detokenizer::continuing(tokenizer, true);
    detokenizer.keep([388]);
    for &id in [&marked[..], &EOS].concat().iter() {
        detokenizer.push(id, &mut text);
    }
    let (calls, content) = read(ToolFormat::Mistral, &text);
    assert_eq!(calls, [("stop".to_owned(), "{}".to_owned())]);
    assert_eq!(content, "");
}
