//! Any text, in which markers stand anywhere: no reader of answers panics, and what it finds does not
//! depend on where the text is cut.

use ingle_text::{
    AnswerPiece, AnswerRules, CallPlace, ReasoningFormat, ReasoningStart, ToolFormat, ToolRules,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::answers::split;
use crate::walk::functions;

/// Parts of markers and of what stands between them.
const PARTS: [&str; 40] = [
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "f>",
    "</function>",
    "<parameter=",
    "a>",
    "</parameter>",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"",
    "\">",
    "</invoke>",
    "<parameter name=\"",
    "<function_calls>",
    "</function_calls>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|channel|>",
    "<|start|>assistant",
    "<|message|>",
    "<|constrain|>json",
    "<|end|>",
    "<|call|>",
    "analysis",
    "commentary to=functions.f ",
    "final",
    "<|tool_call|>",
    "<|/tool_call|>",
    "[TOOL_CALLS]",
    "[ARGS]",
];

const BETWEEN: [&str; 26] = [
    "f",
    "g",
    "(",
    ")",
    "a=",
    "{\"name\": \"f\"",
    "\"arguments\": ",
    "{",
    "}",
    "{}",
    "[",
    "]",
    "\"",
    "'",
    ",",
    ", ",
    "\n",
    " ",
    "```json\n",
    "```",
    "7",
    "None",
    "é🔥",
    "<",
    "\\",
    "<think>",
];

fn part() -> impl Strategy<Value = &'static str> {
    prop_oneof![prop::sample::select(PARTS.to_vec()), prop::sample::select(BETWEEN.to_vec())]
}

/// Without what depends on the seed.
fn found(rules: &AnswerRules, parts: &[&str]) -> Vec<AnswerPiece> {
    split(rules, parts.iter().copied())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(2026),
        ..ProptestConfig::default()
    })]

    #[test]
    fn test_any_text_is_read_alike_however_it_is_cut(
        name in prop::sample::select(ToolFormat::names()),
        parts in prop::collection::vec(part(), 0..16),
        parallel in any::<bool>(),
        place in prop::sample::select(vec![
            CallPlace::InText, CallPlace::Alone, CallPlace::OrJson]),
        start in prop::sample::select(vec![
            ReasoningStart::Opened, ReasoningStart::Unopened, ReasoningStart::Closed]),
    ) {
        let format = ToolFormat::named(name).unwrap();
        let reasoning = match format {
            ToolFormat::Harmony => ReasoningFormat::Harmony,
            _ => ReasoningFormat::named("think").unwrap(),
        };
        let tools = Some(ToolRules { format, tools: functions(&["f", "g"]), parallel, place });
        let rules = AnswerRules { reasoning: Some((reasoning, start)), tools };
        let text = parts.concat();
        let whole = found(&rules, &[&text]);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        prop_assert_eq!(found(&rules, &letters), whole.clone(), "by letters: {:?}", text);
        prop_assert_eq!(found(&rules, &parts), whole, "by parts: {:?}", text);
    }
}
