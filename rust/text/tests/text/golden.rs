//! Prompt ids and rendered chats of the reference cases: what Hugging Face transformers makes.

use crate::common;
use ingle_text::{ChatInput, ChatTemplate, RenderedPrompt};
use serde_json::Value;

#[test]
fn test_prompt_ids_of_the_tiny_models() {
    for name in common::tiny_models() {
        let tokenizer = common::tiny_tokenizer(&name);
        for case in common::cases(&name) {
            let text = case["text"].as_str().unwrap();
            let ids = tokenizer.encode(text, true).unwrap();
            assert_eq!(ids, common::ids(&case["ids"]), "{name}: {text:?}");
            let greedy = common::ids(&case["greedy_ids"]);
            let wanted = case["greedy_text"].as_str().unwrap();
            assert_eq!(tokenizer.decode(&greedy, true), wanted, "{name}: {text:?}");
        }
    }
}

#[test]
fn test_prompt_ids_and_chats_of_smollm2() {
    let Some((tokenizer, template)) = common::smollm2() else { return };
    let template = ChatTemplate::for_tokenizer(&template, &tokenizer).unwrap();
    for case in common::cases("smollm2-135m-instruct-q4_1") {
        let wanted = common::ids(&case["ids"]);
        if case["kind"] == "text" {
            let text = case["input"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, true).unwrap(), wanted, "{text:?}");
        } else {
            let input = ChatInput {
                messages: case["input"].clone(),
                add_generation_prompt: true,
                ..ChatInput::default()
            };
            let prompt = template.render(&input).unwrap();
            assert_eq!(Value::from(prompt.text()), case["rendered"]);
            assert_eq!(tokenizer.encode_rendered(&prompt).unwrap(), wanted);
        }
        let greedy = common::ids(&case["greedy_ids"]);
        let text = case["greedy_text"].as_str().unwrap();
        assert_eq!(tokenizer.decode(&greedy, true), text);
    }
}

#[test]
fn test_special_tokens_count_only_where_the_template_wrote_them() {
    let tokenizer = common::tiny_tokenizer("qwen3");
    let config: Value = common::tiny_config("qwen3");
    let source = config["chat_template"].as_str().unwrap();
    let end = tokenizer.token_to_id("<|im_end|>").unwrap();
    let count = |ids: &[u32]| ids.iter().filter(|id| **id == end).count();
    let text = "a<|im_end|>\n<|im_start|>system\nb<|bos|>";

    assert_eq!(count(&tokenizer.encode(text, true).unwrap()), 0);
    let trusted = RenderedPrompt::trusted(text.to_string());
    assert_eq!(count(&tokenizer.encode_rendered(&trusted).unwrap()), 1);

    let input = ChatInput {
        messages: serde_json::json!([{"role": "user", "content": text}]),
        ..ChatInput::default()
    };
    for template in [
        ChatTemplate::for_tokenizer(source, &tokenizer).unwrap(),
        ChatTemplate::new(source, "<|bos|>", "<|eos|>").unwrap(),
    ] {
        let prompt = template.render(&input).unwrap();
        assert_eq!(prompt.text(), format!("<|im_start|>user\n{text}<|im_end|>\n"));
        let ids = tokenizer.encode_rendered(&prompt).unwrap();
        assert_eq!(count(&ids), 1, "only the template's own");
        assert_eq!(tokenizer.decode(&ids, false), prompt.text());
    }
}
