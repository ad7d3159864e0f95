//! Calls as a list in the syntax of Python (`llama4_pythonic`): they are the whole answer or none, streamed and
//! enforced as the others.

use ingle_text::{
    AnswerParser, AnswerPiece, CallPlace, GrammarBudget, GrammarSource, GrammarState, ToolFormat,
    ToolGrammar, ToolSpec,
};
use serde_json::{Value, json};

use crate::answers::{assert_split, call, content, split};
use crate::blocks::{found, rules, specs, spelt};
use crate::walk::{End, factory, spec, tokenizer, walk};

const FORMAT: ToolFormat = ToolFormat::Llama4Pythonic;

#[test]
fn test_a_list_of_calls_comes_out_as_json_however_it_is_cut() {
    let some = json!({ "city": "Zürich \"🔥\" [a](b) 'c', d", "days": 3, "places": ["a", "]"] });
    let calls = [("weather", some), ("stop", json!({})), ("weather", json!({ "city": "42" }))];
    let list = spelt(FORMAT, &calls);
    let in_text = rules(FORMAT, true, CallPlace::InText);
    let marked = format!("<|python_start|>{list}<|python_end|>");
    for text in [list.clone(), format!("\n {list}\n"), marked] {
        let pieces = split(&in_text, [text.as_str()]);
        let (read, said) = found(&pieces);
        let want: Vec<(String, Value)> =
            calls.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        assert_eq!((read, said.as_str()), (want, ""), "{text}");
        assert_split(&in_text, &text, &pieces);
        for at in text.char_indices().map(|(at, _)| at) {
            assert_eq!(split(&in_text, [&text[..at], &text[at..]]), pieces, "cut at {at}");
        }
    }
}

#[test]
fn test_spellings_of_python_are_read() {
    let in_text = rules(FORMAT, true, CallPlace::InText);
    for (text, want) in [
        ("[weather(city='Bonn', days=None)]", r#"{"city": "Bonn", "days": null}"#),
        ("[weather('Bonn',)]", r#"{"city": "Bonn"}"#),
        (
            "[ weather(city=\"Bonn\", places=('a', True)) ]",
            r#"{"city": "Bonn", "places": ["a", true]}"#,
        ),
    ] {
        assert_split(&in_text, text, &call(0, "weather", want));
    }
    // The end is missing, or more than the end comes.
    assert_split(&in_text, "[stop()", &call(0, "stop", "{}"));
    let more = [&call(0, "stop", "{}")[..], &[content(" Done.")]].concat();
    assert_split(&in_text, "[stop()] Done.", &more);
    let one = rules(FORMAT, false, CallPlace::InText);
    assert_split(&one, "[stop(), stop()]", &call(0, "stop", "{}"));
}

#[test]
fn test_an_answer_that_begins_otherwise_has_no_call() {
    let in_text = rules(FORMAT, true, CallPlace::InText);
    for text in [
        "I call [weather(city=\"Bonn\")].",
        "[1] says so, [2] does not.",
        "[weather] (in Bonn)",
        "[rm(path=\"/\")]",
        "[]",
        "[[1, 2], [3]]",
        "<|python_tag|>",
        "<py",
        "[wo",
    ] {
        assert_split(&in_text, text, &[content(text)]);
    }
    let or_json = rules(FORMAT, true, CallPlace::OrJson);
    for json in [r#"["weather(city=1)"]"#, "[[1, 2], [3]]", r#"{"a": "[stop()]"}"#] {
        assert_split(&or_json, json, &[content(json)]);
    }
    assert_split(&or_json, "\n[stop()]", &call(0, "stop", "{}"));
}

#[test]
fn test_a_limit_within_a_call_shows_no_markup() {
    let calls = [("weather", json!({ "city": "Bonn", "days": 3 })), ("stop", json!({}))];
    let text = spelt(FORMAT, &calls);
    for at in (1..text.len()).filter(|at| text.is_char_boundary(*at)) {
        let mut parser = AnswerParser::new(&rules(FORMAT, true, CallPlace::InText), 1);
        parser.push(&text[..at]);
        parser.finish();
        let is_shown = |piece: &AnswerPiece| matches!(piece, AnswerPiece::Content(_));
        assert!(!parser.take().iter().any(is_shown), "{}", &text[..at]);
    }
}

fn strict() -> Vec<ToolSpec> {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": { "enum": ["Bonn", "Ulm"] },
            "days": { "type": "integer", "minimum": 1, "maximum": 14 }
        },
        "required": ["city"],
        "additionalProperties": false
    });
    vec![
        ToolSpec { name: "weather".into(), parameters: Some(weather), strict: true },
        ToolSpec { name: "stop".into(), parameters: None, strict: true },
    ]
}

fn start(grammar: ToolGrammar) -> GrammarState {
    let spec = spec(GrammarSource::Tools(grammar));
    factory().compile(&spec, GrammarBudget::default()).unwrap().start()
}

fn grammar(parallel: bool, required: bool) -> ToolGrammar {
    ToolGrammar::new(FORMAT, strict(), parallel, required, &tokenizer())
}

fn accepts(mut state: GrammarState, text: &str) -> bool {
    let ids = tokenizer().encode(text, false).unwrap();
    ids.iter().all(|&id| state.accept(id).is_ok()) && state.may_end()
}

#[test]
fn test_required_calls_come_out_of_any_model() {
    let mut several = 0;
    for parallel in [false, true] {
        for seed in 0..8 {
            let mut state = start(grammar(parallel, true));
            let (text, end) = walk(&mut state, seed, 400);
            assert_eq!(end, End::Finished, "{text}");
            let (calls, said) = found(&split(&rules(FORMAT, true, CallPlace::Alone), [&*text]));
            assert!(said.is_empty() && !calls.is_empty(), "{text}: {said}");
            assert!(parallel || calls.len() == 1, "{text}");
            several += usize::from(calls.len() > 1);
            for (name, value) in calls.iter().filter(|(name, _)| name == "weather") {
                assert!(["Bonn", "Ulm"].contains(&value["city"].as_str().unwrap()), "{name}");
            }
        }
    }
    assert!(several > 0);
}

#[test]
fn test_strict_tools_bind_a_list_and_leave_text_alone() {
    let free = |parallel| start(grammar(parallel, false));
    for text in [
        "No call, (x) [y] {z}.\n",
        "[weather(city=\"Ulm\", days=3)]",
        "[weather(city=\"Ulm\"), stop()]",
    ] {
        assert!(accepts(free(true), text), "{text}");
    }
    for text in [
        "[weather(city=\"Rome\")]",
        "[weather(days=3)]",
        "[rm()]",
        " [weather(city=\"Rome\")]",
        "[stop()] and more",
    ] {
        assert!(!accepts(free(true), text), "{text}");
    }
    assert!(!accepts(free(false), "[stop(), stop()]"));
    assert_eq!(specs().len(), strict().len());
}

#[test]
fn test_beside_a_schema_there_are_calls_or_json() {
    let schema = json!({ "type": "array", "items": { "type": "integer" } });
    let make = || start(grammar(true, false).or_answer(schema.clone()).unwrap());
    for text in ["[1, 2]", "[]", "[stop()]", "[weather(city=\"Ulm\"), stop()]"] {
        assert!(accepts(make(), text), "{text}");
    }
    for text in ["text", "[stop(), 1]", "[weather(city=\"Rome\")]"] {
        assert!(!accepts(make(), text), "{text}");
    }
}
