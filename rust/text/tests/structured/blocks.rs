//! Calls whose name stands before their arguments, in markup: arguments come out as JSON, at once and
//! letter by letter.

use ingle_text::{
    AnswerParser, AnswerPiece, AnswerRules, CallPlace, ToolFormat, ToolRules, ToolSpec,
};
use serde_json::{Value, json};

use AnswerPiece::{Arguments, Call};

use crate::answers::{assert_split, call, content, split};

/// All such formats.
pub(crate) const BLOCKS: [ToolFormat; 9] = [
    ToolFormat::Qwen3Coder,
    ToolFormat::SeedOss,
    ToolFormat::Glm45,
    ToolFormat::Glm47,
    ToolFormat::MiniMaxM2,
    ToolFormat::Olmo3,
    ToolFormat::DeepSeekV3,
    ToolFormat::DeepSeekV31,
    ToolFormat::Gemma4,
];

pub(crate) fn specs() -> Vec<ToolSpec> {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "days": { "type": "integer" },
            "places": { "type": "array", "items": { "type": "string" } },
            "unit": { "type": ["string", "null"] }
        },
        "required": ["city"]
    });
    vec![
        ToolSpec { name: "weather".into(), parameters: Some(weather), strict: false },
        ToolSpec { name: "stop".into(), parameters: None, strict: false },
    ]
}

pub(crate) fn rules(format: ToolFormat, parallel: bool, place: CallPlace) -> AnswerRules {
    let tools = specs().into();
    AnswerRules { reasoning: None, tools: Some(ToolRules { format, tools, parallel, place }) }
}

fn in_text(format: ToolFormat) -> AnswerRules {
    rules(format, true, CallPlace::InText)
}

/// Calls as a model writes them. Values that are no strings are JSON.
pub(crate) fn spelt(format: ToolFormat, calls: &[(&str, Value)]) -> String {
    let elements = |arguments: &Value, one: &dyn Fn(&str, String) -> String| -> String {
        let bare = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        arguments.as_object().unwrap().iter().map(|(key, value)| one(key, bare(value))).collect()
    };
    let each = |one: &dyn Fn(&str, &Value) -> String| -> Vec<String> {
        calls.iter().map(|(name, arguments)| one(name, arguments)).collect()
    };
    let qwen = |tag: &str, line: &str| {
        let parameter = |key: &str, value: String| {
            format!("<parameter={key}>{line}{value}{line}</parameter>\n")
        };
        each(&|name, arguments| {
            let all = elements(arguments, &parameter);
            format!("<{tag}>\n<function={name}>\n{all}</function>\n</{tag}>")
        })
        .join("\n")
    };
    match format {
        ToolFormat::Qwen3Coder => qwen("tool_call", "\n"),
        ToolFormat::SeedOss => qwen("seed:tool_call", ""),
        ToolFormat::Glm45 => each(&|name, arguments| {
            let all = elements(arguments, &|key, value| {
                format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
            });
            format!("<tool_call>{name}\n{all}</tool_call>")
        })
        .join("\n"),
        ToolFormat::Glm47 => each(&|name, arguments| {
            let all = elements(arguments, &|key, value| {
                format!("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>")
            });
            format!("<tool_call>{name}{all}</tool_call>")
        })
        .concat(),
        ToolFormat::MiniMaxM2 => {
            let all = each(&|name, arguments| {
                let all = elements(arguments, &|key, value| {
                    format!("<parameter name=\"{key}\">{value}</parameter>\n")
                });
                format!("<invoke name=\"{name}\">\n{all}</invoke>")
            });
            format!("<minimax:tool_call>\n{}\n</minimax:tool_call>", all.join("\n"))
        }
        ToolFormat::Olmo3 => {
            format!("<function_calls>{}</function_calls>", each(&with_keywords).join("\n"))
        }
        ToolFormat::Llama4Pythonic => format!("[{}]", each(&with_keywords).join(", ")),
        ToolFormat::DeepSeekV3 => {
            let all = each(&|name, arguments| {
                format!(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
                )
            });
            format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", all.join("\n"))
        }
        ToolFormat::DeepSeekV31 => {
            let all = each(&|name, arguments| {
                format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
            });
            format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", all.concat())
        }
        ToolFormat::Gemma4 => each(&|name, arguments| {
            format!("<|tool_call>call:{name}{}<tool_call|>", bare(arguments))
        })
        .concat(),
        other => panic!("{other:?} writes calls as JSON"),
    }
}

/// A call in the syntax of Python.
fn with_keywords(name: &str, arguments: &Value) -> String {
    let keywords = arguments.as_object().unwrap().iter();
    let keywords: Vec<String> = keywords.map(|(key, value)| format!("{key}={value}")).collect();
    format!("{name}({})", keywords.join(", "))
}

/// A value as Gemma 4 writes it.
fn bare(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(bare).collect::<Vec<_>>().join(","))
        }
        Value::Object(members) => {
            let all = members.iter().map(|(key, value)| format!("{key}:{}", bare(value)));
            format!("{{{}}}", all.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// Names and parsed arguments of the calls in pieces, and the content.
pub(crate) fn found(pieces: &[AnswerPiece]) -> (Vec<(String, Value)>, String) {
    let (mut calls, mut content): (Vec<(String, String)>, _) = (Vec::new(), String::new());
    for piece in pieces {
        match piece {
            Call { name, .. } => calls.push((name.clone(), String::new())),
            Arguments { index, text } => calls[*index as usize].1.push_str(text),
            AnswerPiece::Content(text) => content.push_str(text),
            AnswerPiece::Reasoning(text) => panic!("{text}"),
        }
    }
    let parsed = |(name, text): (String, String)| {
        let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (name, value)
    };
    (calls.into_iter().map(parsed).collect(), content)
}

#[test]
fn test_calls_come_out_as_json_however_they_are_cut() {
    let unicode = "Zürich 🔥\n\"quoted\" \\ 1 < 2 </par";
    let some = json!({ "city": unicode, "days": 3, "places": ["a", "]"], "unit": null });
    let calls = [("weather", some), ("stop", json!({})), ("weather", json!({ "city": "42" }))];
    for format in BLOCKS {
        let text = format!("Let me look, 1 < 2.\n\n{}\n", spelt(format, &calls));
        let pieces = split(&in_text(format), [text.as_str()]);
        let (read, said) = found(&pieces);
        let want: Vec<(String, Value)> =
            calls.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        assert_eq!(read, want, "{format:?}: {text}");
        assert_eq!(said, "Let me look, 1 < 2.", "{format:?}");
        assert_split(&in_text(format), &text, &pieces);
        for at in text.char_indices().map(|(at, _)| at) {
            let cut = split(&in_text(format), [&text[..at], &text[at..]]);
            assert_eq!(cut, pieces, "{format:?} cut at {at}");
        }
    }
}

#[test]
fn test_strings_of_elements_are_streamed() {
    for format in
        [ToolFormat::Qwen3Coder, ToolFormat::SeedOss, ToolFormat::Glm45, ToolFormat::MiniMaxM2]
    {
        let text = spelt(format, &[("weather", json!({ "city": "Bonn am Rhein" }))]);
        let mut parser = AnswerParser::new(&in_text(format), 1);
        let (before, rest) = text.split_at(text.find(" am").unwrap());
        parser.push(before);
        let arguments: String = parser
            .take()
            .into_iter()
            .filter_map(|piece| match piece {
                Arguments { text, .. } => Some(text),
                _ => None,
            })
            .collect();
        assert_eq!(arguments, "{\"city\": \"Bonn", "{format:?}");
        parser.push(rest);
        parser.finish();
        assert_eq!(parser.num_calls(), 1);
    }
}

#[test]
fn test_a_limit_within_a_call_shows_no_markup() {
    let calls = [("weather", json!({ "city": "Bonn", "days": 3 })), ("stop", json!({}))];
    for format in BLOCKS {
        let text = format!("Yes.\n{}", spelt(format, &calls));
        for at in text.char_indices().map(|(at, _)| at) {
            let pieces = split(&in_text(format), [&text[..at]]);
            let shown: String = pieces
                .iter()
                .filter_map(|piece| match piece {
                    AnswerPiece::Content(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            // Fewer letters of a marker may as well be text.
            let lead = shown.strip_prefix("Yes.").unwrap_or(&shown).trim_start();
            assert!(lead.len() < 5 || "Yes.".starts_with(&*shown), "{format:?}: {shown:?}");
        }
    }
}

#[test]
fn test_one_call_where_several_are_not_wanted() {
    let calls = [("stop", json!({})), ("stop", json!({}))];
    for format in BLOCKS {
        let text = spelt(format, &calls) + " and more";
        let one = rules(format, false, CallPlace::InText);
        assert_split(&one, &text, &call(0, "stop", "{}"));
    }
}

#[test]
fn test_what_is_no_call_stays_in_the_content() {
    for (format, text) in [
        (ToolFormat::Qwen3Coder, "<tool_call>soon</tool_call>"),
        (ToolFormat::Qwen3Coder, "<tool_call>{\"name\": \"weather\"}</tool_call>"),
        (ToolFormat::Qwen3Coder, "write <function=other> first"),
        (ToolFormat::Qwen3Coder, "a <tool_cal> <fun"),
        (ToolFormat::Glm45, "<tool_call>{\"name\": \"weather\"}\n</tool_call>"),
        (ToolFormat::MiniMaxM2, "<minimax:tool_call>\nnothing"),
        (ToolFormat::DeepSeekV31, "<｜tool▁calls▁begin｜>nothing"),
        (ToolFormat::DeepSeekV31, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>7"),
        (ToolFormat::Olmo3, "<function_calls>two words(</function_calls>"),
        (ToolFormat::Gemma4, "write call:weather{city:1} first"),
        (ToolFormat::Gemma4, "<|tool_call>soon<tool_call|>"),
        (ToolFormat::Gemma4, "<|tool_call>call:two words{}<tool_call|>"),
    ] {
        assert_split(&in_text(format), text, &[content(text)]);
    }
}

#[test]
fn test_spellings_that_models_slip_into_are_read() {
    let bonn = call(0, "weather", "{\"city\": \"Bonn\"}");
    for (format, text) in [
        // The frame is missing, or an end.
        (
            ToolFormat::Qwen3Coder,
            "<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>",
        ),
        (
            ToolFormat::Qwen3Coder,
            "<tool_call>\n<function=weather>\n<parameter=city>Bonn</parameter>\n</tool_call>",
        ),
        (
            ToolFormat::Qwen3Coder,
            "<tool_call><function=weather><parameter=city>Bonn</parameter></function></tool_call></tool_call>",
        ),
        (
            ToolFormat::Glm47,
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n</tool_call>",
        ),
        (
            ToolFormat::Glm45,
            "<tool_call>weather<arg_key>city</arg_key><arg_value>Bonn</arg_value></tool_call>",
        ),
        (ToolFormat::Olmo3, "<function_calls>\nweather('Bonn')\n</function_calls>"),
        (ToolFormat::Gemma4, "<|tool_call>call:weather{city: <|\"|>Bonn<|\"|> }}<tool_call|>"),
        (ToolFormat::Gemma4, "<|tool_call>\ncall:weather{<|\"|>city<|\"|>:Bonn}"),
        (ToolFormat::Olmo3, "<function_calls>[weather(city=\"Bonn\",)]</function_calls>"),
        (
            ToolFormat::DeepSeekV3,
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n{\"city\": \"Bonn\"}<｜tool▁call▁end｜>",
        ),
    ] {
        assert_split(&in_text(format), text, &bonn);
    }
    let constants = "<function_calls>f(a=True, b=None, c=[1, 'x'])</function_calls>";
    let want = call(0, "f", r#"{"a": true, "b": null, "c": [1, "x"]}"#);
    assert_split(&in_text(ToolFormat::Olmo3), constants, &want);
}

#[test]
fn test_values_are_what_the_schema_says() {
    let text = "<tool_call>\n<function=weather>\n<parameter=city>\n\n7\n\n</parameter>\n\
                <parameter=days>\n7\n</parameter>\n<parameter=unit>\n7\n</parameter>\n\
                <parameter=places>\n['a', \"b\"]\n</parameter>\n</function>\n</tool_call>";
    // One line feed at each end belongs to the markup.
    let want =
        call(0, "weather", r#"{"city": "\n7\n", "days": 7, "unit": "7", "places": ["a", "b"]}"#);
    assert_split(&in_text(ToolFormat::Qwen3Coder), text, &want);
}

#[test]
fn test_beside_a_schema_the_beginning_decides() {
    let json = r#"{"note": "<tool_call><function=stop></function></tool_call>"}"#;
    for format in BLOCKS {
        let rules = rules(format, true, CallPlace::OrJson);
        assert_split(&rules, json, &[content(json)]);
        let text = format!("\n{}", spelt(format, &[("stop", json!({}))]));
        assert_split(&rules, &text, &call(0, "stop", "{}"));
    }
}
