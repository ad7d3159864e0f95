//! Answers in the harmony format of gpt-oss.

use ingle_text::{AnswerRules, CallPlace, ReasoningFormat, ReasoningStart, ToolFormat, ToolRules};
use serde_json::json;

use ReasoningStart::{Closed, Opened, Unopened};

use crate::answers::{assert_split, call, content, reasoning};
use crate::walk::functions;

fn rules(start: ReasoningStart, tools: bool, parallel: bool) -> AnswerRules {
    let tools = tools.then(|| ToolRules {
        format: ToolFormat::Harmony,
        tools: functions(&["f", "g"]),
        parallel,
        place: CallPlace::InText,
    });
    AnswerRules { reasoning: Some((ReasoningFormat::Harmony, start)), tools }
}

const FINAL: &str = "<|channel|>final<|message|>";
const ANALYSIS: &str = "<|channel|>analysis<|message|>";
const NEXT: &str = "<|end|><|start|>assistant";
const CALL: &str = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>";

#[test]
fn test_channels_decide_what_a_message_is() {
    let plain = rules(Unopened, true, true);
    let (hm, yes) = (reasoning("hm 1 < 2"), content("Yes |> <|."));
    for text in [
        format!("{ANALYSIS}hm 1 < 2{NEXT}{FINAL}Yes |> <|."),
        format!("{ANALYSIS}hm 1 < 2{NEXT}{FINAL}Yes |> <|.<|return|>"),
        // An end that the model forgot, and a format that it names.
        format!("{ANALYSIS}hm 1 < 2<|start|>assistant{FINAL}Yes |> <|."),
        format!("{ANALYSIS}hm 1 < 2{FINAL}Yes |> <|."),
        format!("{ANALYSIS}hm 1 < 2{NEXT}<|channel|>final <|constrain|>json<|message|>Yes |> <|."),
    ] {
        assert_split(&plain, &text, &[hm.clone(), yes.clone()]);
        assert_split(&rules(Unopened, false, true), &text, &[hm.clone(), yes.clone()]);
    }
    assert_split(&plain, &format!("{FINAL}Yes |> <|."), std::slice::from_ref(&yes));
    assert_split(&rules(Closed, true, true), "Yes |> <|.<|return|>", std::slice::from_ref(&yes));
    let opened = format!("hm 1 < 2{NEXT}{FINAL}Yes |> <|.");
    assert_split(&rules(Opened, true, true), &opened, &[hm, yes]);
    // Messages of one kind stand apart.
    let several = format!("{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c{NEXT}{FINAL}d");
    assert_split(&plain, &several, &[reasoning("a\nb"), content("c\nd")]);
}

#[test]
fn test_a_message_to_a_function_is_a_call() {
    let rules = rules(Unopened, true, true);
    let one = call(0, "f", r#"{"a": "<b>"}"#);
    let arguments = r#"{"a": "<b>"}"#;
    for header in [
        CALL,
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.f<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.f<|message|>",
        "<|channel|>analysis to=functions.f code<|message|>",
    ] {
        assert_split(&rules, &format!("{header}{arguments}"), &one);
        assert_split(&rules, &format!("{header}{arguments}<|call|>"), &one);
    }
    let text = format!(
        "{ANALYSIS}hm{NEXT}<|channel|>commentary<|message|>Let me see.{NEXT}{CALL}{arguments}"
    );
    let want = [&[reasoning("hm"), content("Let me see.")][..], &one].concat();
    assert_split(&rules, &text, &want);
    // Two calls, should a model write them.
    let text = format!(
        "{CALL}{arguments}<|call|><|start|>assistant to=functions.g<|channel|>commentary json<|message|>{{}}"
    );
    assert_split(&rules, &text, &[&one[..], &call(1, "g", "{}")].concat());
    // No arguments at all, or null.
    for text in ["", " \n", "null"] {
        assert_split(&rules, &format!("{CALL}{text}<|call|>"), &call(0, "f", "{}"));
    }
    // What is no object is no call; what is meant for a tool that nobody offered is no call either.
    assert_split(&rules, &format!("{CALL}[1]"), &[content("[1]")]);
    let python = "<|channel|>analysis to=python code<|message|>print(1)<|call|>";
    assert_split(&rules, python, &[reasoning("print(1)")]);
}

#[test]
fn test_one_call_ends_the_answer_where_several_are_not_wanted() {
    let text = format!("{CALL}{{}}<|call|><|start|>assistant{FINAL}more");
    assert_split(&rules(Unopened, true, false), &text, &call(0, "f", "{}"));
}

#[test]
fn test_headers_and_begun_markers_are_no_text() {
    let plain = rules(Unopened, true, true);
    for text in ["<|cha", "<|channel|>ana", "<|channel|>analysis<|mess", ANALYSIS] {
        assert_split(&plain, text, &[]);
    }
    assert_split(&plain, &format!("{FINAL}Yes<|retu"), &[content("Yes")]);
    assert_split(&plain, &format!("{FINAL}1 <"), &[content("1 <")]);
    assert_split(&plain, &format!("{ANALYSIS}hm{NEXT}<|chan"), &[reasoning("hm")]);
}

#[test]
fn test_the_end_of_the_prompt_decides_where_an_answer_begins() {
    let template = "{{ '<|channel|>' }}{{ '<|message|>' }}";
    let format = ReasoningFormat::detect(template).unwrap();
    assert_eq!(format, ReasoningFormat::Harmony);
    assert_eq!(format.start_after("<|end|><|start|>assistant"), Unopened);
    assert_eq!(format.start_after("<|start|>assistant<|channel|>analysis<|message|>"), Opened);
    assert_eq!(format.start_after("<|channel|>final<|message|>Once upon"), Closed);
    assert_eq!(ReasoningFormat::named("openai_gptoss"), Some(ReasoningFormat::Harmony));
    assert_eq!(ReasoningFormat::named("qwen3"), ReasoningFormat::detect("<think>"));
    assert_eq!(ReasoningFormat::named("none"), None);
}

#[test]
fn test_a_template_of_one_call_gets_one_call_a_message() {
    let called = |id: &str, name: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": {} } });
    let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": id });
    let user = json!({ "role": "user", "content": "?" });
    let both = json!([
        user,
        { "role": "assistant", "content": "I look.", "reasoning_content": "hm",
          "tool_calls": [called("a", "f"), called("b", "g")] },
        result("b"),
        result("a"),
        user,
    ]);
    let split = ToolFormat::Harmony.messages_with_all_calls(&both).unwrap();
    let want = json!([
        user,
        { "role": "assistant", "content": "", "reasoning_content": "hm\n\nI look.",
          "tool_calls": [called("a", "f")] },
        result("a"),
        { "role": "assistant", "content": "", "tool_calls": [called("b", "g")] },
        result("b"),
        user,
    ]);
    assert_eq!(split, want);
    // Nothing is changed that the template writes whole.
    let single = json!([user, { "role": "assistant", "content": "", "reasoning_content": "hm",
                                "tool_calls": [called("a", "f")] }, result("a")]);
    assert_eq!(ToolFormat::Harmony.messages_with_all_calls(&single), None);
    assert_eq!(ToolFormat::Hermes.messages_with_all_calls(&both), None);
}
