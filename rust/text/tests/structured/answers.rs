//! Answers split into reasoning, content and tool calls, however the text is cut.

use ingle_text::{
    AnswerParser, AnswerPiece, AnswerRules, CallPlace, ReasoningFormat, ReasoningStart, ToolFormat,
    ToolRules,
};
use proptest::prelude::*;

use AnswerPiece::{Arguments, Call, Content, Reasoning};

use crate::walk::{FORMATS, functions};

fn tools(format: ToolFormat, parallel: bool) -> AnswerRules {
    let tools = functions(&["f", "g"]);
    let place = CallPlace::InText;
    AnswerRules { reasoning: None, tools: Some(ToolRules { format, tools, parallel, place }) }
}

fn thinking(start: ReasoningStart) -> AnswerRules {
    let tags = ReasoningFormat::detect("{{ '<think>' }}{{ '</think>' }}").unwrap();
    AnswerRules { reasoning: Some((tags, start)), tools: None }
}

/// The pieces of a text that comes in parts; neighbours of one kind joined, ids blanked.
pub(crate) fn split<'t>(
    rules: &AnswerRules,
    parts: impl IntoIterator<Item = &'t str>,
) -> Vec<AnswerPiece> {
    let mut parser = AnswerParser::new(rules, 7);
    let mut pieces: Vec<AnswerPiece> = Vec::new();
    let mut join = |parser: &mut AnswerParser| {
        for piece in parser.take() {
            match (pieces.last_mut(), piece) {
                (Some(Content(text)), Content(more)) => text.push_str(&more),
                (Some(Reasoning(text)), Reasoning(more)) => text.push_str(&more),
                (Some(Arguments { text, .. }), Arguments { text: more, .. }) => {
                    text.push_str(&more);
                }
                (_, Call { index, name, .. }) => {
                    pieces.push(Call { index, name, id: String::new() });
                }
                (_, piece) => pieces.push(piece),
            }
        }
    };
    for part in parts {
        parser.push(part);
        join(&mut parser);
    }
    parser.finish();
    join(&mut parser);
    pieces
}

pub(crate) fn content(text: &str) -> AnswerPiece {
    Content(text.into())
}

pub(crate) fn reasoning(text: &str) -> AnswerPiece {
    Reasoning(text.into())
}

pub(crate) fn call(index: u32, name: &str, arguments: &str) -> [AnswerPiece; 2] {
    [
        Call { index, id: String::new(), name: name.into() },
        Arguments { index, text: arguments.into() },
    ]
}

pub(crate) fn assert_split(rules: &AnswerRules, text: &str, want: &[AnswerPiece]) {
    assert_eq!(split(rules, [text]), want, "{text:?} at once");
    let letters: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(split(rules, letters.iter().map(String::as_str)), want, "{text:?} by letters");
}

#[test]
fn test_hermes_calls() {
    let rules = tools(ToolFormat::Hermes, true);
    let one = call(0, "f", r#"{"a": 1}"#);
    let two = call(1, "g", "{}");
    let both = [one.clone(), two.clone()].concat();
    let cases: [(&str, &[AnswerPiece]); 15] = [
        ("plain <b>text</b>\n", &[content("plain <b>text</b>\n")]),
        ("  \n", &[content("  \n")]),
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", &one),
        ("<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>", &one),
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}", &one),
        (
            "Let me see.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}}</tool_call>\n",
            &[&[content("Let me see.")][..], &one].concat(),
        ),
        (
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}}</tool_call>\n\
             <tool_call>\n{\"name\":\"g\"}\n</tool_call>",
            &both,
        ),
        (
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}}\n{\"name\":\"g\",\"arguments\":{}}\
             </tool_call>",
            &both,
        ),
        (
            "<tool_call>[{\"name\":\"f\",\"arguments\":{\"a\": 1}}, {\"name\":\"g\"}]</tool_call>",
            &both,
        ),
        // The arguments as a string that holds JSON: decoded once.
        (r#"<tool_call>{"name":"f","arguments":"{\"a\": 1}"}</tool_call>"#, &one),
        // Braces and quotes in strings.
        (
            r#"<tool_call>{"name": "f", "arguments": {"s": "}\"]</tool_call>{"}, "id": 7}</tool_call>"#,
            &call(0, "f", r#"{"s": "}\"]</tool_call>{"}"#),
        ),
        // No calls: nothing is lost.
        ("<tool_call>soon</tool_call>", &[content("<tool_call>soon</tool_call>")]),
        // Cut before its name: no text either.
        ("<tool_call>{\"nam", &[]),
        (
            "<tool_call>{\"name\": 5}</tool_call>",
            &[content("<tool_call>{\"name\": 5}</tool_call>")],
        ),
        (
            "a <tool_cal> <tool_<tool_call>{\"name\":\"g\"}</tool_call> b",
            &[&[content("a <tool_cal> <tool_")][..], &call(0, "g", "{}"), &[content(" b")]]
                .concat(),
        ),
    ];
    for (text, want) in cases {
        assert_split(&rules, text, want);
    }
    // Cut off by max_tokens in the arguments: what there is.
    assert_split(
        &rules,
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": [1, 2",
        &call(0, "f", "{\"a\": [1, 2"),
    );
}

#[test]
fn test_one_call_where_several_are_not_wanted() {
    let rules = tools(ToolFormat::Hermes, false);
    let text = "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\"}</tool_call> x";
    assert_split(&rules, text, &call(0, "f", "{}"));
    let mut parser = AnswerParser::new(&rules, 1);
    parser.push("<tool_call>{\"name\":\"f\", \"arguments\": {}");
    assert!(!parser.is_complete());
    parser.push("}");
    assert!(parser.is_complete());
    assert_eq!(parser.num_calls(), 1);
}

#[test]
fn test_llama_calls() {
    let rules = tools(ToolFormat::Llama3, true);
    let one = call(0, "f", r#"{"a": 1}"#);
    for text in [
        r#"{"name": "f", "parameters": {"a": 1}}"#,
        r#"<|python_tag|>{"name": "f", "parameters": {"a": 1}}"#,
        r#"  {"type": "function", "name": "f", "parameters": {"a": 1}}"#,
    ] {
        assert_split(&rules, text, &one);
    }
    let two = [one.clone(), call(1, "g", "{}")].concat();
    let text = r#"{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}"#;
    assert_split(&rules, text, &two);
    // JSON that is no call, and a name that nobody declared.
    for text in [
        r#"{"city": "Paris", "name": "f"}"#,
        r#"{"name": "h", "parameters": {}}"#,
        r#"{"name": "f"#,
        "{",
        "Words {\"name\": \"f\", \"parameters\": {}}",
        "<|python_tag|>search.call(query=\"x\")",
    ] {
        assert_split(&rules, text, &[content(text)]);
    }
    let mut parser = AnswerParser::new(&rules, 1);
    parser.push("{\"city\"");
    assert_eq!(parser.take(), [content("{\"city\"")], "other JSON is not held back to its end");
}

#[test]
fn test_mistral_calls() {
    let both = [call(0, "f", r#"{"a": 1}"#), call(1, "g", "{}")].concat();
    let list = r#"[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}, "id": "x"}]"#;
    assert_split(&tools(ToolFormat::Mistral, true), list, &both);
    let named = r#"[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}"#;
    assert_split(&tools(ToolFormat::MistralNamed, true), named, &both);
    let text = r#"[TOOL_CALLS] and [more] [T"#;
    assert_split(&tools(ToolFormat::Mistral, true), text, &[content(text)]);
    let text = r#"[TOOL_CALLS]f[ARGS]none"#;
    assert_split(&tools(ToolFormat::MistralNamed, true), text, &[content(text)]);
    let mut parser = AnswerParser::new(&tools(ToolFormat::Mistral, true), 3);
    parser.push(list);
    for piece in parser.take() {
        if let Call { id, .. } = piece {
            assert!(id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
        }
    }
}

/// A call of `f` as a model of this format writes it, with the JSON text of its arguments.
fn spelt(format: ToolFormat, arguments: &str) -> String {
    match format {
        ToolFormat::Hermes => {
            format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>")
        }
        ToolFormat::SmolLm2 => {
            format!("<tool_call>[{{\"name\": \"f\", \"arguments\": {arguments}}}]</tool_call>")
        }
        ToolFormat::Llama3 => format!("{{\"name\": \"f\", \"parameters\": {arguments}}}"),
        ToolFormat::Mistral => {
            format!("[TOOL_CALLS][{{\"name\": \"f\", \"arguments\": {arguments}}}]")
        }
        ToolFormat::MistralNamed => format!("[TOOL_CALLS]f[ARGS]{arguments}"),
        ToolFormat::Granite => {
            format!("<|tool_call|>[{{\"name\": \"f\", \"arguments\": {arguments}}}]")
        }
        ToolFormat::Phi4Mini | ToolFormat::Phi4MiniSystem => {
            format!("<|tool_call|>[{{\"name\": \"f\", \"arguments\": {arguments}}}]<|/tool_call|>")
        }
        other => panic!("{other:?} is tested in blocks.rs"),
    }
}

#[test]
fn test_arguments_that_are_no_object_make_no_call() {
    for format in FORMATS {
        let rules = tools(format, true);
        assert_split(&rules, &spelt(format, "null"), &call(0, "f", "{}"));
        assert_split(&rules, &spelt(format, "{}"), &call(0, "f", "{}"));
        for other in ["[1, 2]", "7", "-1.5", "true", "nil", "\"word\"", "\"[1]\"", "\"{\\\"a\\\"\""]
        {
            let text = spelt(format, other);
            assert_split(&rules, &text, &[content(&text)]);
        }
        if format != ToolFormat::MistralNamed {
            for none in ["\"\"", "\"null\"", "\"{}\""] {
                assert_split(&rules, &spelt(format, none), &call(0, "f", "{}"));
            }
        }
    }
}

#[test]
fn test_a_call_that_is_cut_before_its_arguments_is_a_call() {
    for format in FORMATS {
        let text = spelt(format, "#");
        let cut = text.split('#').next().unwrap();
        let named = Call { index: 0, id: String::new(), name: "f".into() };
        assert_split(&tools(format, true), cut, std::slice::from_ref(&named));
        assert_split(&tools(format, false), cut, &[named]);
    }
}

#[test]
fn test_braces_and_markers_too_many_or_too_few_are_no_content() {
    for format in FORMATS {
        let rules = tools(format, true);
        let whole = spelt(format, "{\"a\": 1}");
        let one = call(0, "f", "{\"a\": 1}");
        let mut texts = vec![whole.clone(), format!("{whole}}}"), format!("{whole}\n}} ]\n")];
        if matches!(format, ToolFormat::Hermes | ToolFormat::SmolLm2) {
            let inner = whole.strip_suffix("</tool_call>").unwrap().trim_end();
            texts.extend([
                inner.to_owned(),
                format!("{inner}}}</tool_call>"),
                format!("{inner}\n}}}}\n</tool_call>"),
                format!("{inner}]\n</tool_call>"),
                format!("{whole}</tool_call>"),
                format!("{whole}\n</tool_call>\n</tool_call>"),
                // A brace or a bracket is missing.
                format!("{}</tool_call>", inner.strip_suffix(['}', ']']).unwrap()),
            ]);
        }
        if format == ToolFormat::Mistral {
            texts.push(whole.replace("}}]", "}}}]"));
        }
        for text in texts {
            assert_split(&rules, &text, &one);
            // What follows is content, with its white space.
            let more = [&one[..], &[content(" Done.")]].concat();
            let is_closed = text.ends_with('>') || (format == ToolFormat::Mistral && text == whole);
            if is_closed {
                assert_split(&rules, &format!("{text} Done."), &more);
            }
        }
    }
}

#[test]
fn test_llamas_calls_may_be_divided_by_line_feeds_and_semicolons() {
    let rules = tools(ToolFormat::Llama3, true);
    let (f, g) = (r#"{"name": "f", "parameters": {"a": 1}}"#, r#"{"name": "g", "parameters": {}}"#);
    let two = [call(0, "f", r#"{"a": 1}"#), call(1, "g", "{}")].concat();
    for between in ["\n", "; ", ";", "\n\n", ", ", " ", "", ";\n", "\n<|python_tag|>", "}\n"] {
        assert_split(&rules, &format!("{f}{between}{g}"), &two);
        assert_split(&rules, &format!("<|python_tag|>{f}{between}{g}\n"), &two);
    }
    // What is no call is content, the mark before it too.
    let more = [&call(0, "f", r#"{"a": 1}"#)[..], &[content("; and so on")]].concat();
    assert_split(&rules, &format!("{f}; and so on"), &more);
    let more = [&call(0, "f", r#"{"a": 1}"#)[..], &[content(r#"{"city": 1}"#)]].concat();
    assert_split(&rules, &format!("{f}\n{{\"city\": 1}}"), &more);
    // Only one is wanted.
    let one = tools(ToolFormat::Llama3, false);
    assert_split(&one, &format!("{f}\n{g}"), &call(0, "f", r#"{"a": 1}"#));
}

#[test]
fn test_ids_differ_between_calls_and_answers() {
    let mut ids = std::collections::HashSet::new();
    for seed in 0..200 {
        let mut parser = AnswerParser::new(&tools(ToolFormat::Hermes, true), seed);
        for _ in 0..3 {
            parser.push("<tool_call>{\"name\":\"f\"}</tool_call>");
        }
        for piece in parser.take() {
            if let Call { id, .. } = piece {
                assert!(id.starts_with("call_") && ids.insert(id));
            }
        }
    }
    assert_eq!(ids.len(), 600);
}

#[test]
fn test_reasoning_is_split_off() {
    use ReasoningStart::{Closed, Opened, Unopened};
    let cases: [(ReasoningStart, &str, &[AnswerPiece]); 12] = [
        (Unopened, "<think>\nhm\n</think>\n\nYes.\n", &[reasoning("hm"), content("Yes.\n")]),
        (Opened, "\nhm <b>\n</think>\n\nYes.", &[reasoning("hm <b>"), content("Yes.")]),
        (Opened, "<think>hm</think>Yes.", &[reasoning("hm"), content("Yes.")]),
        (Unopened, "<think>\n\n</think>\n\nYes.", &[content("Yes.")]),
        (Opened, "</think>Yes.", &[content("Yes.")]),
        (Unopened, " Yes, <think> is a tag.", &[content(" Yes, <think> is a tag.")]),
        (Unopened, " <thi", &[content(" <thi")]),
        (Closed, "<think>no</think>", &[content("<think>no</think>")]),
        (Opened, "never ends </th", &[reasoning("never ends </th")]),
        (Opened, "cut </thin", &[reasoning("cut")]),
        (Opened, "a </think> b </think> c", &[reasoning("a"), content("b </think> c")]),
        (Unopened, "", &[]),
    ];
    for (start, text, want) in cases {
        assert_split(&thinking(start), text, want);
    }
}

#[test]
fn test_calls_after_reasoning_and_calls_within_it() {
    let tags = ReasoningFormat::detect("<think>").unwrap();
    let rules = AnswerRules {
        reasoning: Some((tags, ReasoningStart::Unopened)),
        tools: tools(ToolFormat::Hermes, true).tools,
    };
    let text = "<think>maybe <tool_call>{\"name\":\"g\"}</tool_call></think>\n\
                <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    let thought = reasoning("maybe <tool_call>{\"name\":\"g\"}</tool_call>");
    assert_split(&rules, text, &[&[thought][..], &call(0, "f", "{}")].concat());
}

#[test]
fn test_templates_show_the_format() {
    let detect = ToolFormat::detect;
    assert_eq!(detect("{% if tools %}<tool_call>{% endif %}"), Some(ToolFormat::Hermes));
    assert_eq!(detect("{% if tools %}[TOOL_CALLS]{% endif %}"), Some(ToolFormat::Mistral));
    assert_eq!(
        detect("{% if tools %}[TOOL_CALLS]x[ARGS]{% endif %}"),
        Some(ToolFormat::MistralNamed)
    );
    assert_eq!(detect("{% if tools %}<|python_tag|>{% endif %}"), Some(ToolFormat::Llama3));
    assert_eq!(detect("{{ tools }}"), None);
    assert_eq!(detect("{{ messages }}"), None);
    assert_eq!(detect("You are SmolLM"), Some(ToolFormat::SmolLm2));
    assert_eq!(ReasoningFormat::detect("<tool_call>"), None);
    let seed = ReasoningFormat::detect("{%- set end = '</seed:think>' %}").unwrap();
    assert_eq!(seed.markers(), ["<seed:think>", "</seed:think>"]);
    let channel = ReasoningFormat::detect("{{ '<|channel>thought\\n<channel|>' }}").unwrap();
    assert_eq!((channel.name(), channel.markers()), ("gemma4", vec!["<|channel>", "<channel|>"]));
    let closed = "<|turn>model\n<|channel>thought\n<channel|>";
    assert_eq!(channel.start_after(closed), ReasoningStart::Closed);
    assert_eq!(channel.start_after("<|turn>model\n<|channel>thought\n"), ReasoningStart::Opened);
    assert_eq!(channel.start_after("<|turn>model\n"), ReasoningStart::Unopened);
    let end = "assistant\n<seed:think><seed:cot_budget_reflect>\n";
    assert_eq!(seed.start_after(end), ReasoningStart::Opened);
    let tags = ReasoningFormat::detect("{{ x.split('</think>') }}").unwrap();
    assert_eq!(tags.start_after("<think>old</think>\n<|assistant|>"), ReasoningStart::Unopened);
    assert_eq!(tags.start_after("<|assistant|><think>\n"), ReasoningStart::Opened);
    assert_eq!(tags.start_after("<think>\n\n</think>\n\n"), ReasoningStart::Closed);
}

/// Texts full of what parsers look for.
fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "<think>",
        "</think>",
        "{\"name\": \"f\"",
        "{\"name\":\"h\"",
        ", \"arguments\": ",
        "\"arguments\": {",
        "{\"a\": 1}",
        "{\"b\": \"}\\\"\"}",
        "\"{\\\"c\\\": 2}\"",
        "}",
        "]",
        "[",
        ",",
        ";",
        "{",
        "\"",
        "\\",
        " ",
        "\n",
        "x",
        "é",
        "💩",
        "<",
        "tool",
        "12",
        "null",
    ]);
    prop::collection::vec(fragment, 0..24).prop_map(|parts| parts.concat())
}

fn rules() -> impl Strategy<Value = AnswerRules> {
    let format = prop::sample::select(vec![
        ToolFormat::Hermes,
        ToolFormat::SmolLm2,
        ToolFormat::Llama3,
        ToolFormat::Mistral,
        ToolFormat::MistralNamed,
    ]);
    let start = prop::sample::select(vec![
        None,
        Some(ReasoningStart::Opened),
        Some(ReasoningStart::Unopened),
    ]);
    let place = prop::sample::select(vec![CallPlace::InText, CallPlace::Alone, CallPlace::OrJson]);
    (format, any::<bool>(), start, place).prop_map(|(format, parallel, start, place)| AnswerRules {
        reasoning: start.and_then(|start| thinking(start).reasoning),
        tools: tools(format, parallel).tools.map(|tools| ToolRules { place, ..tools }),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn test_any_cut_gives_the_same_answer(
        rules in rules(),
        text in fragments(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let places: Vec<usize> =
            text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&places)).collect();
        cuts.sort_unstable();
        let mut parts = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([text.len()]) {
            parts.push(&text[from..cut]);
            from = cut;
        }
        let whole = split(&rules, [text.as_str()]);
        prop_assert_eq!(split(&rules, parts), whole.clone());
        // Each call begins once, in order, and its arguments follow it.
        let mut calls = 0;
        for piece in &whole {
            match piece {
                Call { index, name, .. } => {
                    prop_assert_eq!(*index, calls);
                    prop_assert!(!name.is_empty());
                    calls += 1;
                }
                Arguments { index, .. } => prop_assert_eq!(*index + 1, calls),
                Content(text) | Reasoning(text) => prop_assert!(!text.is_empty()),
            }
        }
    }

    #[test]
    fn test_text_without_markers_is_content(text in "[a-z {}\",.\n]{0,60}") {
        let rules = tools(ToolFormat::Hermes, true);
        let want = if text.is_empty() { vec![] } else { vec![content(&text)] };
        prop_assert_eq!(split(&rules, [text.as_str()]), want);
    }
}
