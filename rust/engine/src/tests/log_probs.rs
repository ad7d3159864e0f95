//! Log-probabilities in both formats, plain, streamed and echoed. The scripted executor gives -0.5
//! for a token and -0.5 - k for the ids after it.

use serde_json::{Value, json};

use ingle_core::SamplingParams;

use super::harness::{Bench, events_of, says};
use crate::entry_budget::{EntryBudget, MAX_OF_ANSWERS, MAX_OF_PROMPTS};
use crate::error::EngineError;
use crate::prompt_logs::PromptLogs;
use crate::wire::GenerationRequest;

fn body(bench: &Bench, format: &str, extra: Value) -> Value {
    let mut request = json!({
        "prompts": [{ "text": "Hello 🙂", "add_special_tokens": false }],
        "sampling": { "logprobs": 2 },
        "output": { "format": format },
    });
    for (key, value) in extra.as_object().unwrap() {
        request[key] = value.clone();
    }
    bench.body(&request)
}

#[test]
fn test_chat_log_probs_have_true_bytes() {
    let text = "a 🙂!";
    let bench = Bench::auto(says(text));
    let body = body(&bench, "chat", json!({ "stop": ["zzz"] }));
    let entries = body["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    let mut bytes = Vec::new();
    for entry in &entries[..entries.len() - 1] {
        assert_eq!(entry["logprob"], -0.5);
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(entry["top_logprobs"][1]["logprob"], -1.5);
        bytes.extend(entry["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8));
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
    assert_eq!(body["choices"][0]["logprobs"]["refusal"], Value::Null);

    let events = events_of(&bench.stream(&json!({
        "prompts": [{ "text": "Hello 🙂", "add_special_tokens": false }],
        "sampling": { "logprobs": 2 },
        "stop": ["zzz"],
        "output": { "format": "chat", "stream": true },
    })));
    let mut streamed = Vec::new();
    for event in &events {
        let content = &event["choices"][0]["logprobs"]["content"];
        streamed.extend(content.as_array().cloned().unwrap_or_default());
    }
    assert_eq!(streamed, entries);
}

#[test]
fn test_completion_log_probs_join_to_the_text_and_offsets_count_characters() {
    let bench = Bench::auto(says("é naïve words"));
    let body = body(&bench, "completion", json!({}));
    let choice = &body["choices"][0];
    let log_probs = &choice["logprobs"];
    let tokens = log_probs["tokens"].as_array().unwrap();
    let offsets = log_probs["text_offset"].as_array().unwrap();
    assert_eq!(tokens.len(), offsets.len());
    assert_eq!(tokens.len(), log_probs["token_logprobs"].as_array().unwrap().len());
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    // The last token is end-of-text, which is not shown.
    for (token, offset) in tokens[..tokens.len() - 1].iter().zip(offsets) {
        let token = token.as_str().unwrap();
        if !token.starts_with("bytes:") {
            let at = offset.as_u64().unwrap() as usize;
            let shown: String = text[at..].iter().take(token.chars().count()).collect();
            assert_eq!(shown, token);
        }
    }
    for (token, top) in tokens.iter().zip(log_probs["top_logprobs"].as_array().unwrap()) {
        let top = top.as_object().unwrap();
        assert_eq!(top.len(), 2, "no two entries may be merged: {top:?}");
        assert_eq!(top[token.as_str().unwrap()], -0.5);
    }
}

#[test]
fn test_zero_log_probs_give_the_own_token_only() {
    let bench = Bench::auto(says("ab"));
    let body = body(&bench, "chat", json!({ "sampling": { "logprobs": 0 } }));
    for entry in body["choices"][0]["logprobs"]["content"].as_array().unwrap() {
        assert_eq!(entry["logprob"], -0.5);
        assert_eq!(entry["top_logprobs"], json!([]));
    }
}

#[test]
fn test_echo_puts_the_prompt_in_front_with_null_first() {
    let bench = Bench::auto(says("done"));
    let prompt = "Hello 🙂 there";
    let num_prompt = bench.ids(prompt).len();
    for (max_tokens, tail) in [(0, ""), (20, "done")] {
        let request = json!({
            "prompts": [{ "text": prompt, "add_special_tokens": false }],
            "n": 2,
            "max_tokens": max_tokens,
            "sampling": { "logprobs": 1 },
            "output": { "format": "completion", "echo": true },
        });
        let body = bench.body(&request);
        for choice in body["choices"].as_array().unwrap() {
            assert_eq!(choice["text"], format!("{prompt}{tail}"));
            let log_probs = &choice["logprobs"];
            let values = log_probs["token_logprobs"].as_array().unwrap();
            assert!(values.len() >= num_prompt, "{values:?}");
            assert_eq!(values[0], Value::Null);
            assert_eq!(log_probs["top_logprobs"][0], Value::Null);
            assert!(values[1..].iter().all(|value| *value == -0.5), "{values:?}");
            let offsets = log_probs["text_offset"].as_array().unwrap();
            assert_eq!(offsets[0], 0);
            if max_tokens > 0 {
                assert_eq!(offsets[num_prompt], prompt.chars().count());
            } else {
                assert_eq!(values.len(), num_prompt);
            }
        }
        let mut request = request;
        request["output"]["stream"] = json!(true);
        let events = events_of(&bench.stream(&request));
        let first = &events[0]["choices"][0];
        assert!(first["text"].as_str().unwrap().starts_with(prompt), "{first}");
        assert_eq!(first["logprobs"]["token_logprobs"][0], Value::Null);
    }
}

#[test]
fn test_a_request_has_a_bound_on_its_log_probs() {
    let bench = Bench::auto(says("x"));
    let request = |prompts: usize, len: usize, extra: Value| {
        let mut request = json!({
            "prompts": vec![json!({ "token_ids": vec![5; len] }); prompts],
            "max_tokens": 0,
            "sampling": { "logprobs": 20 },
            "output": { "format": "completion", "echo": true },
        });
        for (key, value) in extra.as_object().unwrap() {
            request[key] = value.clone();
        }
        request
    };
    // Ten choices are all that this engine takes, so the bound itself is out of reach here.
    bench.body(&request(10, 199, json!({})));
    let budget = |request: &Value| {
        let request: GenerationRequest = serde_json::from_value(request.clone()).unwrap();
        let top = request.sampling.logprobs.map(|top| top as u32);
        let sampling = SamplingParams { log_probs: top, ..SamplingParams::default() };
        let logs = PromptLogs::new(&request, &sampling).unwrap();
        EntryBudget::new(&request, &sampling, logs)
    };
    let whole = |format| json!({ "output": { "format": format }, "max_tokens": 1000 });
    for (extra, n, per_prompt, most, param) in [
        (json!({}), 1, 3000 * 21, MAX_OF_PROMPTS, "logprobs"),
        (json!({ "sampling": { "logprobs": 1 } }), 2, 3000 * 2 * 2, MAX_OF_PROMPTS, "logprobs"),
        (json!({ "max_tokens": 1000 }), 1, 3000 * 21, MAX_OF_PROMPTS, "logprobs"),
        (whole("completion"), 1, 21_000, MAX_OF_ANSWERS, "logprobs"),
        (whole("chat"), 3, 63_000, MAX_OF_ANSWERS, "top_logprobs"),
    ] {
        let request = request(1, 3000, extra.clone());
        let max_tokens = request["max_tokens"].as_u64().unwrap().max(1) as u32;
        let mut budget = budget(&request);
        for _ in 0..most / per_prompt {
            budget.take(3000, max_tokens, n).unwrap();
        }
        let error = budget.take(3000, max_tokens, n).unwrap_err();
        let EngineError::Refused { message, param: named, status: 400, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!(named.as_deref(), Some(param), "{extra}");
        let total = (most / per_prompt + 1) * per_prompt;
        assert!(message.contains(&format!("{total} log-probs, at most {most}")), "{message}");
    }
    // What a stream shows is not held, and without log-probs there are none.
    for extra in
        [json!({ "output": { "format": "completion", "stream": true } }), json!({ "sampling": {} })]
    {
        let mut budget = budget(&request(1, 3000, extra));
        for _ in 0..1000 {
            budget.take(3000, 100_000, 100).unwrap();
        }
    }
}
