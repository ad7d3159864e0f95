//! Markup of calls never reaches the content: not in whole answers, not in streams cut anywhere, not in
//! answers that a limit ends in the middle of a call.

use ingle_text::{AnswerParser, AnswerPiece, AnswerRules, CallPlace, ToolFormat, ToolRules};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::walk::{FORMATS, functions};

/// What an answer was split into.
#[derive(Debug, Default, PartialEq)]
struct Found {
    content: String,
    calls: Vec<(String, String)>,
}

fn read<'t>(format: ToolFormat, parts: impl IntoIterator<Item = &'t str>) -> Found {
    let tools = functions(&["weather", "stop"]);
    let tools = ToolRules { format, tools, parallel: true, place: CallPlace::InText };
    let mut parser = AnswerParser::new(&AnswerRules { reasoning: None, tools: Some(tools) }, 1);
    let mut found = Found::default();
    let mut take = |parser: &mut AnswerParser| {
        for piece in parser.take() {
            match piece {
                AnswerPiece::Call { name, .. } => found.calls.push((name, String::new())),
                AnswerPiece::Arguments { index, text } => {
                    found.calls[index as usize].1.push_str(&text);
                }
                AnswerPiece::Content(text) => found.content.push_str(&text),
                AnswerPiece::Reasoning(text) => panic!("no reasoning was asked for: {text}"),
            }
        }
    };
    for part in parts {
        parser.push(part);
        take(&mut parser);
    }
    parser.finish();
    take(&mut parser);
    found
}

/// Calls in the spelling of a format, with white space where models put it.
fn spelt(format: ToolFormat, calls: &[(&str, String)], space: &str) -> String {
    let object = |key: &str| -> Vec<String> {
        let one = |(name, arguments): &(&str, String)| {
            format!("{{\"name\":{space}\"{name}\", \"{key}\": {arguments}{space}}}")
        };
        calls.iter().map(one).collect()
    };
    match format {
        ToolFormat::Hermes => {
            let one = |call: &String| format!("<tool_call>{space}{call}{space}</tool_call>");
            object("arguments").iter().map(one).collect::<Vec<_>>().join("\n")
        }
        ToolFormat::SmolLm2 => {
            let all = object("arguments").join(", ");
            format!("<tool_call>{space}[{all}]{space}</tool_call>")
        }
        ToolFormat::Llama3 => object("parameters").join(if space.is_empty() { "; " } else { "\n" }),
        ToolFormat::Mistral => format!("[TOOL_CALLS]{space}[{}]", object("arguments").join(", ")),
        ToolFormat::MistralNamed => {
            let one = |(name, arguments): &(&str, String)| {
                format!("[TOOL_CALLS]{name}[ARGS]{space}{arguments}")
            };
            calls.iter().map(one).collect()
        }
        ToolFormat::Granite => {
            format!("<|tool_call|>{space}[{}]", object("arguments").join(", "))
        }
        ToolFormat::Phi4Mini | ToolFormat::Phi4MiniSystem => {
            let all = object("arguments").join(", ");
            format!("<|tool_call|>{space}[{all}]{space}<|/tool_call|>")
        }
        other => panic!("{other:?} is tested in blocks.rs"),
    }
}

/// Arguments whose strings look like markup.
fn arguments() -> impl Strategy<Value = String> {
    let text = prop::sample::select(vec![
        "Bonn",
        "</tool_call>",
        "<tool_call>{\\\"name\\\": \\\"stop\\\"}",
        "[TOOL_CALLS]stop[ARGS]{}",
        "}}]",
        "{",
        "\\\\",
        "é💩",
        "\\u00e9",
        "",
    ]);
    prop::collection::vec(text, 0..4).prop_map(|texts| {
        let fields: Vec<String> = texts
            .iter()
            .enumerate()
            .map(|(i, text)| format!("\"k{i}\": [\"{text}\", {{}}, 1]"))
            .collect();
        format!("{{{}}}", fields.join(", "))
    })
}

fn pieces(text: &str, cuts: &[prop::sample::Index]) -> Vec<String> {
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&places)).collect();
    cuts.sort_unstable();
    let mut from = 0;
    let mut parts = Vec::new();
    for cut in cuts.into_iter().chain([text.len()]) {
        parts.push(text[from..cut].to_owned());
        from = cut;
    }
    parts
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(2026),
        ..ProptestConfig::default()
    })]

    #[test]
    fn test_no_markup_of_calls_reaches_the_content(
        format in prop::sample::select(FORMATS.to_vec()),
        lead in prop::sample::select(vec!["", "Let me look.", "Is 1 < 2? [Yes] {ok}.\n\n"]),
        calls in prop::collection::vec(
            (prop::sample::select(vec!["weather", "stop"]), arguments()), 1..4),
        space in prop::sample::select(vec!["", " ", "\n"]),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        end in any::<prop::sample::Index>(),
    ) {
        // Llama's calls have no marker: text before them makes the whole answer text.
        let lead = if format == ToolFormat::Llama3 { "" } else { lead };
        let text = format!("{lead}{}", spelt(format, &calls, space));
        let whole = read(format, [text.as_str()]);
        let want: Vec<(String, String)> =
            calls.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone())).collect();
        prop_assert_eq!(&whole.calls, &want, "{}", text);
        prop_assert_eq!(whole.content.trim_end(), lead.trim_end(), "{}", text);
        let parts = pieces(&text, &cuts);
        prop_assert_eq!(&read(format, parts.iter().map(String::as_str)), &whole, "{:?}", parts);
        // A limit that ends the answer anywhere shows no markup either. Llama's calls begin like any JSON.
        if format == ToolFormat::Llama3 {
            return Ok(());
        }
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let cut = &text[..*end.get(&places)];
        let found = read(format, pieces(cut, &cuts).iter().map(String::as_str));
        let shown = found.content.trim_end();
        // Fewer letters of a marker may as well be text: "1 <".
        let lead_of = |most: usize| (0..=most).any(|n| {
            format.markers().iter().any(|marker| shown.ends_with(&marker[..n])
                && lead.starts_with(shown[..shown.len() - n].trim_end()))
        });
        prop_assert!(lead_of(4), "{:?} of {:?}", found, cut);
    }
}
