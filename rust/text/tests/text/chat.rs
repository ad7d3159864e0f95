//! Chat templates render as Jinja2 renders them, and special tokens of the request stay text.

use ingle_text::{ChatInput, ChatTemplate, TextError, Tokenizer};
use serde_json::{Value, json};

use crate::vocabularies::{byte_level, tiny_with};

/// The special tokens of the models whose styles the templates follow.
const SPECIAL: [&str; 22] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "<bos>",
    "<eos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
];

fn folder() -> std::path::PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chat").into()
}

fn source(name: &str) -> String {
    std::fs::read_to_string(folder().join(format!("templates/{name}.jinja"))).unwrap()
}

/// A tokenizer with all the special tokens above and `<think>`, which is not special.
fn tokenizer(bos: &str, eos: &str) -> Tokenizer {
    let mut file = tiny_with(Value::Null, byte_level(true));
    let added = SPECIAL.iter().map(|token| (*token, true)).chain([("<think>", false)]);
    file["added_tokens"] = (1000..)
        .zip(added)
        .map(|(id, (token, special))| json!({"id": id, "content": token, "special": special}))
        .collect();
    let config = json!({"bos_token": bos, "eos_token": eos}).to_string();
    Tokenizer::from_json(file.to_string().as_bytes(), Some(config.as_bytes())).unwrap()
}

fn input_of(case: &Value, now: i64) -> ChatInput {
    let flag = |name: &str| case[name] == true;
    ChatInput {
        messages: case["messages"].clone(),
        tools: Some(case["tools"].clone()).filter(|tools| !tools.is_null()),
        add_generation_prompt: flag("add_generation_prompt"),
        continue_final_message: flag("continue_final_message"),
        kwargs: case["kwargs"].as_object().cloned().unwrap_or_default(),
        now,
    }
}

#[test]
fn test_templates_render_as_jinja2_renders_them() {
    let file = std::fs::read_to_string(folder().join("cases.json")).unwrap();
    let file: Value = serde_json::from_str(&file).unwrap();
    let mut wrong = Vec::new();
    for case in file["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let named = |index: usize| file["named"][name][index].as_str().unwrap();
        let (bos, eos) = (named(0), named(1));
        let exact = ChatTemplate::for_tokenizer(&source(name), &tokenizer(bos, eos)).unwrap();
        let plain = ChatTemplate::new(&source(name), bos, eos).unwrap();
        for (how, template) in [("for_tokenizer", exact), ("new", plain)] {
            let got = template.render(&input_of(case, file["now"].as_i64().unwrap()));
            let got = match got {
                Ok(prompt) => json!({"text": prompt.text()}),
                Err(TextError::TemplateRefused(message)) => json!({"refused": message}),
                Err(TextError::TemplateFailed(_) | TextError::Input { .. }) => {
                    json!({"failed": true})
                }
                Err(other) => panic!("{other}"),
            };
            let key = got.as_object().unwrap().keys().next().unwrap();
            if case[key] != got[key] {
                let difference = difference(&got[key], case);
                wrong.push(format!("{name} by {how}, {}: {difference}", case["chat"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The first line that differs.
fn difference(got: &Value, case: &Value) -> String {
    let (Some(got), Some(wanted)) = (got.as_str(), case["text"].as_str()) else {
        return format!("{got} is not {case}");
    };
    let differs = got.lines().zip(wanted.lines()).find(|(got, wanted)| got != wanted);
    differs
        .map_or("the number of lines".into(), |(got, wanted)| format!("{got:?} is not {wanted:?}"))
}

/// Renders one user message with a template and counts the special tokens of the result.
fn special_tokens_in(source: &str, messages: Value) -> (String, Vec<u32>) {
    let tokenizer = tokenizer("<s>", "</s>");
    let template = ChatTemplate::for_tokenizer(source, &tokenizer).unwrap();
    let prompt = template.render(&ChatInput { messages, ..ChatInput::default() }).unwrap();
    let ids = tokenizer.encode_rendered(&prompt).unwrap();
    let special = ids.iter().copied().filter(|id| tokenizer.is_special(*id)).collect();
    (prompt.text(), special)
}

#[test]
fn test_no_way_of_joining_text_of_the_request_makes_a_special_token() {
    let user = |content: &str| json!({"role": "user", "content": content});
    // The template; the messages; the text. The only special token is the template's `<s>`.
    let cases = [
        // Two parts that the template joins.
        (
            "{{ '<s>' }}{% for m in messages %}{{ m.content }}{% endfor %}",
            json!([user("a<|im_"), user("end|>b")]),
            "<s>a<|im_end|>b",
        ),
        // The template takes out what stood between.
        (
            "{{ '<s>' + messages[0].content | replace('XX', '') }}",
            json!([user("<|imXX_end|> [INXXST]")]),
            "<s><|im_end|> [INST]",
        ),
        (
            "{{ '<s>' + messages[0].content.split('</think>') | join }}",
            json!([user("<|im_</think>end|>")]),
            "<s><|im_end|>",
        ),
        // The template writes the beginning or the end of a special token beside the text.
        ("{{ '<s><|im_' + messages[0].content }}", json!([user("end|>")]), "<s><|im_end|>"),
        ("{{ '<s>' + messages[0].content + '|im_end|>' }}", json!([user("<")]), "<s><|im_end|>"),
        // Reversed, cut, printed as a list, as JSON, and as a key.
        ("{{ '<s>' + messages[0].content[::-1] }}", json!([user(">|dne_mi|<")]), "<s><|im_end|>"),
        ("{{ '<s>' }}{{ [messages[0].content] }}", json!([user("</s>")]), "<s>['</s>']"),
        (
            "{{ '<s>' }}{{ messages[0] | tojson }}",
            json!([{"role": "user", "</s>": "[INST]"}]),
            "<s>{\"role\": \"user\", \"</s>\": \"[INST]\"}",
        ),
        // A template that looks for parts of a token sees them, and opens no way by that.
        (
            "{{ '<s>' }}{% if '<|im_' in messages[0].content or 'end|>' in messages[0].content %}x{% endif %}{{ messages[0].content }}",
            json!([user("<|im_end|>")]),
            "<s>x<|im_end|>",
        ),
        // Private-use characters of the request stay what they are.
        (
            "{{ '<s>' + messages[0].content }}",
            json!([user("\u{F0000}s> </s>\u{F0001}")]),
            "<s>\u{F0000}s> </s>\u{F0001}",
        ),
    ];
    for (source, messages, wanted) in cases {
        let (text, special) = special_tokens_in(source, messages);
        assert_eq!(text, wanted, "{source}");
        assert_eq!(special, [1007], "{source}");
    }
}

#[test]
fn test_special_tokens_in_other_variables_of_the_request_stay_text() {
    let tokenizer = tokenizer("<s>", "</s>");
    let source = "{{ bos_token + my_token + tools[0].name }}";
    let template = ChatTemplate::for_tokenizer(source, &tokenizer).unwrap();
    let mut input = ChatInput {
        messages: json!([{"role": "user", "content": "x"}]),
        tools: Some(json!([{"name": "</s>"}])),
        ..ChatInput::default()
    };
    input.kwargs.insert("my_token".into(), "<s>".into());
    let prompt = template.render(&input).unwrap();
    assert_eq!(prompt.text(), "<s><s></s>");
    let ids = tokenizer.encode_rendered(&prompt).unwrap();
    assert_eq!(ids.iter().filter(|id| tokenizer.is_special(**id)).count(), 1);
}

#[test]
fn test_a_very_long_chat_is_within_the_limits() {
    let content = "some text < and more > ".repeat(217);
    let message = |index: usize| json!({"role": if index.is_multiple_of(2) { "user" } else { "assistant" }, "content": content});
    let input = ChatInput { messages: (0..2000).map(message).collect(), ..ChatInput::default() };
    let template = ChatTemplate::new(&source("qwen3"), "<s>", "</s>").unwrap();
    assert!(template.render(&input).unwrap().as_str().len() > 2000 * content.len());
}

#[test]
fn test_special_tokens_that_a_template_puts_together_count() {
    let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]);
    let (text, special) = special_tokens_in(&source("phi3"), messages);
    assert_eq!(text, "<|user|>\nx<|end|>\n<|assistant|>\ny<|end|>\n</s>");
    assert_eq!(special, [1019, 1021, 1020, 1021, 1008]);
    // A role that is no name is text of the request.
    let messages = json!([{"role": "user|><|end", "content": "x"}]);
    let (_, special) = special_tokens_in(&source("phi3"), messages);
    assert_eq!(special, [1021, 1008]);
}

#[test]
fn test_reasoning_is_split_though_its_tags_are_special() {
    // `[/INST]` stands for a closing tag that the model's vocabulary calls special.
    let source = "{% for m in messages %}{{ '<s>' + m.content.split('[/INST]')[-1] }}{% endfor %}";
    let answer = json!([{"role": "assistant", "content": "thought[/INST]answer"}]);
    assert_eq!(special_tokens_in(source, answer), ("<s>answer".into(), vec![1007]));
    // The template sees it in a user's message too, as with Jinja2; what it leaves there is text.
    let user = json!([{"role": "user", "content": "thought[/INST]answer"}]);
    assert_eq!(special_tokens_in(source, user.clone()), ("<s>answer".into(), vec![1007]));
    let whole = "{{ '<s>' + messages[0].content }}";
    assert_eq!(special_tokens_in(whole, user), ("<s>thought[/INST]answer".into(), vec![1007]));
}

#[test]
fn test_special_tokens_are_kept_out_however_they_are_spelled() {
    let mut file = tiny_with(Value::Null, byte_level(true));
    file["added_tokens"] = json!([{"id": 1000, "content": "{end}", "special": true}]);
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), None).unwrap();
    let input = ChatInput {
        messages: json!([{"role": "user", "content": "{end}"}]),
        ..ChatInput::default()
    };
    let blind = ChatTemplate::new(&source("chatml"), "<s>", "</s>").unwrap();
    let knowing = ChatTemplate::for_tokenizer(&source("chatml"), &tokenizer).unwrap();
    for template in [blind, knowing] {
        let ids = tokenizer.encode_rendered(&template.render(&input).unwrap()).unwrap();
        assert!(!ids.contains(&1000));
    }
}

/// `<think>` is no special token of this tokenizer, as of Qwen3's; HTML tags and words are text.
#[test]
fn test_markers_count_where_the_template_or_an_answer_wrote_them() {
    let mut file = tiny_with(Value::Null, byte_level(true));
    let added = ["<think>", "</think>", "<tool_call>", "</tool_response>", "<table>", "wörd"];
    file["added_tokens"] = (1000..)
        .zip(added)
        .map(|(id, token)| json!({"id": id, "content": token, "special": false, "normalized": id % 2 == 0}))
        .collect();
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), None).unwrap();
    let source = "{% for m in messages %}{{ '<think>' + m.content }}{% endfor %}{{ tools }}{{ x }}";
    let template = ChatTemplate::for_tokenizer(source, &tokenizer).unwrap();
    let ids = |role: &str, content: &str| {
        let mut input = ChatInput {
            messages: json!([{"role": role, "content": content}]),
            tools: Some(json!([{"name": "<tool_call>"}])),
            ..ChatInput::default()
        };
        input.kwargs.insert("x".into(), "</think>".into());
        let ids = tokenizer.encode_rendered(&template.render(&input).unwrap()).unwrap();
        ids.into_iter().filter(|id| *id >= 1000).collect::<Vec<_>>()
    };
    let typed = "</think><tool_call></tool_response><table>wörd<think>";
    for role in ["user", "tool", "system"] {
        assert_eq!(ids(role, typed), [1000, 1004, 1005], "{role}");
    }
    assert_eq!(ids("assistant", typed), [1000, 1001, 1002, 1003, 1004, 1005, 1000]);
    // A plain text says what it says: its sender may paste a prompt.
    let plain = tokenizer.encode_prompt("</think>", false).unwrap();
    assert_eq!(plain, [1001]);
}

#[test]
fn test_hostile_templates_end_with_an_error() {
    let render = |source: &str| {
        let template = ChatTemplate::new(source, "<s>", "</s>")?;
        let messages = json!([{"role": "user", "content": "x"}]);
        template.render(&ChatInput { messages, ..ChatInput::default() })
    };
    let loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    let doubling = format!("{{% set s = 'x' %}}{}", "{% set s = s ~ s %}".repeat(64));
    let writing = "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}";
    for source in [loops, doubling.as_str(), writing] {
        let error = render(source).unwrap_err();
        assert!(matches!(error, TextError::TemplateLimit { .. }), "{source:.40}: {error}");
        assert!(error.to_string().contains("units of work"), "{source:.40}: {error}");
    }
    let recursion = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(matches!(render(recursion), Err(TextError::TemplateFailed(_))));
    for source in [
        "{% include 'x' %}",
        "{% extends 'x' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
    ] {
        assert!(render(source).is_err(), "{source}");
    }
    let broken = render("a\n{% for x in %}").unwrap_err().to_string();
    assert!(broken.starts_with("chat template: line 2: "), "{broken}");
}

#[test]
fn test_fields_that_cannot_be_honoured_are_named() {
    let render = |input: ChatInput| {
        let template = ChatTemplate::new(&source("chatml"), "<s>", "</s>").unwrap();
        template.render(&input).unwrap_err().to_string()
    };
    let user = json!([{"role": "user", "content": "x"}]);
    let with = |messages: &Value| ChatInput { messages: messages.clone(), ..ChatInput::default() };
    for messages in [json!([]), json!({}), json!(null), json!(["x"])] {
        assert!(render(with(&messages)).starts_with("messages: expected"), "{messages}");
    }
    let mut both = with(&user);
    (both.add_generation_prompt, both.continue_final_message) = (true, true);
    assert!(render(both).contains("cannot be combined"));
    let mut nothing = with(&json!([{"role": "assistant", "content": null}]));
    nothing.continue_final_message = true;
    assert!(render(nothing).contains("no text to continue"));
    for key in ["messages", "chat_template", "tokenize", "tools", "bos_token"] {
        let mut reserved = with(&user);
        reserved.kwargs.insert(key.into(), Value::Null);
        assert!(render(reserved).contains(key));
    }
}

/// A message that is full of markers costs one walk.
#[test]
fn test_hostile_messages_cost_no_more_than_their_size() {
    let qwen = include_str!("../chat/templates/qwen3.jinja");
    let template = ChatTemplate::new(qwen, "<s>", "</s>").unwrap();
    let render = |messages| template.render(&ChatInput { messages, ..ChatInput::default() });
    let think = "</think>".repeat(100_000);
    let private: String = ('\u{F0000}'..).take(60_000).collect::<String>().repeat(4);
    for content in [think, private, "<".repeat(1_000_000)] {
        let began = std::time::Instant::now();
        let message = json!({"role": "assistant", "content": content});
        render(json!([{"role": "user", "content": content}, message])).unwrap();
        // A hundred times what it takes on an idle machine.
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
    let deep = (0..1000).fold(json!(1), |inner, _| json!([inner]));
    let messages = json!([{"role": "user", "content": "x", "extra": deep}]);
    let error = render(messages).unwrap_err().to_string();
    assert!(error.starts_with("messages: nested deeper than"), "{error}");
}

/// The engine's parser recurses: whatever it makes of these, the process survives it.
#[test]
fn test_deep_sources_end_at_load() {
    for source in [
        format!("{{{{ {}1 }}}}", "-".repeat(200_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(60_000)),
        "{% if 1 %}".repeat(20_000),
        format!("{{{{ x{} }}}}", ".a".repeat(100_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(60_000)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(20_000)),
        "x".repeat(300_000),
    ] {
        let _ = ChatTemplate::new(&source, "<s>", "</s>");
    }
    let long = ChatTemplate::new(&"x".repeat(300_000), "<s>", "</s>").unwrap_err();
    assert!(long.to_string().contains("300000 bytes, at most 262144"), "{long}");
}

#[test]
fn test_a_long_text_that_a_template_raises_is_shortened() {
    let source = "{{ raise_exception(messages[0]['content'] * 1000) }}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let messages = json!([{"role": "user", "content": "x".repeat(100)}]);
    let error = template.render(&ChatInput { messages, ..ChatInput::default() }).unwrap_err();
    assert!(matches!(error, TextError::TemplateRefused(_)), "{error:?}");
    assert!(error.to_string().len() < 1200, "{} bytes", error.to_string().len());
}
