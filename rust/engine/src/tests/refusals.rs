//! What is refused, and that the refusal names the field.

use serde_json::{Value, json};

use super::harness::{Bench, MAX_MODEL_LEN, says};
use crate::error::EngineError;

fn refusal(bench: &Bench, extra: &Value) -> (String, Option<String>, Option<&'static str>) {
    let mut request = json!({
        "prompts": [{ "token_ids": [5, 6] }],
        "output": { "format": "completion" },
    });
    for (key, value) in extra.as_object().unwrap() {
        request[key] = value.clone();
    }
    match bench.submit(&request) {
        Err(EngineError::Refused { message, param, code, status: 400 }) => (message, param, code),
        other => panic!("{extra}: {other:?}"),
    }
}

fn biases(count: u32) -> Value {
    (0..count).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn test_a_tiny_number_is_printed_in_few_digits() {
    let bench = Bench::auto(says("x"));
    let tiny = json!({ "sampling": { "repetition_penalty": 1e-320 } });
    let (message, param, _) = refusal(&bench, &tiny);
    assert_eq!(message, "repetition_penalty: must be a number from 0.01 to 100, not 1e-320");
    assert_eq!(param.as_deref(), Some("repetition_penalty"));
}

#[test]
fn test_a_long_unknown_name_is_not_printed_in_full() {
    let bench = Bench::auto(says("x"));
    let long = "x".repeat(100_000);
    let tool = json!({ "function": { "name": "f", long.as_str(): 1 } });
    let chat = json!({ "messages": [], "tools": [tool] });
    for extra in [json!({ long.as_str(): 1 }), json!({ "prompts": [{ "chat": chat }] })] {
        let (message, _, _) = refusal(&bench, &extra);
        assert!(message.starts_with("request: unknown field"), "{message}");
        assert!(message.len() < 1000, "{} bytes", message.len());
    }
    let document = json!({ long.as_str(): 1 }).to_string();
    let error = bench.engine.tokenize(document.as_bytes()).unwrap_err().to_string();
    assert!(
        error.starts_with("prompt: unknown field") && error.len() < 1000,
        "{} bytes",
        error.len()
    );
}

#[test]
fn test_every_refusal_names_its_field() {
    let bench = Bench::auto(says("x"));
    for (extra, param) in [
        (json!({ "prompts": [] }), "prompt"),
        (json!({ "prompts": [{ "token_ids": [] }] }), "prompt"),
        (json!({ "prompts": [{ "token_ids": [388] }] }), "prompt"),
        (json!({ "prompts": [{ "token_ids": [-1] }] }), "prompt"),
        (json!({ "prompts": [{}] }), "prompt"),
        (json!({ "prompts": [{ "text": "a", "token_ids": [1] }] }), "prompt"),
        (json!({ "prompts": [{ "text": "", "add_special_tokens": false }] }), "prompt"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": -1 }), "n"),
        (json!({ "n": 1_000_000 }), "n"),
        (json!({ "n": 11 }), "n"),
        (json!({ "max_tokens": -1 }), "max_tokens"),
        (json!({ "min_tokens": 5, "max_tokens": 4 }), "min_tokens"),
        (json!({ "min_tokens": -1 }), "min_tokens"),
        (json!({ "stop": [""] }), "stop"),
        (json!({ "stop": ["a", ""] }), "stop"),
        (json!({ "stop_token_ids": [388] }), "stop_token_ids"),
        (json!({ "truncate_prompt_tokens": 0 }), "truncate_prompt_tokens"),
        (json!({ "truncate_prompt_tokens": -2 }), "truncate_prompt_tokens"),
        (json!({ "priority": 3_000_000_000_u64 }), "priority"),
        (json!({ "sampling": { "temperature": -0.1 } }), "temperature"),
        (json!({ "sampling": { "temperature": 1e300 } }), "temperature"),
        (json!({ "sampling": { "top_p": 0 } }), "top_p"),
        (json!({ "sampling": { "top_p": 1.1 } }), "top_p"),
        (json!({ "sampling": { "top_k": -5 } }), "top_k"),
        (json!({ "sampling": { "min_p": 1.5 } }), "min_p"),
        (json!({ "sampling": { "repetition_penalty": 0 } }), "repetition_penalty"),
        (json!({ "sampling": { "repetition_penalty": 1e-60 } }), "repetition_penalty"),
        (json!({ "sampling": { "presence_penalty": 2.5 } }), "presence_penalty"),
        (json!({ "sampling": { "frequency_penalty": -2.5 } }), "frequency_penalty"),
        (json!({ "sampling": { "logit_bias": { "x": 1 } } }), "logit_bias"),
        (json!({ "sampling": { "logit_bias": { "388": 1 } } }), "logit_bias"),
        (json!({ "sampling": { "logit_bias": { "5": 101 } } }), "logit_bias"),
        (json!({ "sampling": { "logit_bias": { "5": 1, "05": 1 } } }), "logit_bias"),
        (json!({ "sampling": { "logit_bias": biases(1025) } }), "logit_bias"),
        (json!({ "stop_token_ids": vec![5; 129] }), "stop_token_ids"),
        (
            // With the model's own end-of-text one more than the device's sampler holds back.
            json!({ "min_tokens": 1, "stop_token_ids": (10..138).collect::<Vec<_>>() }),
            "stop_token_ids",
        ),
        (json!({ "sampling": { "allowed_token_ids": [] } }), "allowed_token_ids"),
        (json!({ "sampling": { "allowed_token_ids": [388] } }), "allowed_token_ids"),
        (json!({ "sampling": { "allowed_token_ids": [1] }, "min_tokens": 1 }), "allowed_token_ids"),
        (json!({ "sampling": { "logprobs": 21 } }), "logprobs"),
        (json!({ "sampling": { "logprobs": -1 } }), "logprobs"),
        (json!({ "sampling": { "seed": 1.5 } }), "seed"),
        (json!({ "output": { "format": "completion", "pooling": "mean" } }), "pooling"),
        (json!({ "output": { "format": "embedding", "stream": true } }), "stream"),
        (json!({ "output": { "format": "embedding", "echo": true } }), "echo"),
        (json!({ "output": { "format": "embedding" }, "n": 2 }), "n"),
        (json!({ "output": { "format": "embedding" }, "max_tokens": 1 }), "max_tokens"),
        (json!({ "output": { "format": "embedding" }, "sampling": { "logprobs": 1 } }), "logprobs"),
    ] {
        let (message, got, _) = refusal(&bench, &extra);
        let field = got.as_deref().and_then(|place| place.split('[').next());
        assert_eq!(field, Some(param), "{extra}: {message}");
        assert!(message.contains(param) && !message.contains('\n'), "{message}");
    }
    let chat = json!({
        "prompts": [{ "chat": {
            "messages": [{ "role": "user", "content": "a" }], "continue_final_message": true
        } }],
    });
    assert_eq!(refusal(&bench, &chat).1.as_deref(), Some("continue_final_message"));
    assert!(refusal(&bench, &json!({ "temprature": 1 })).0.contains("temprature"));
    // Nothing of all this was counted as running.
    assert_eq!(bench.engine.front.room.in_system(), 0);
}

#[test]
fn test_an_id_outside_the_vocabulary_is_named_by_its_place() {
    let bench = Bench::auto(says("x"));
    for (extra, place) in [
        (json!({ "prompts": [{ "token_ids": [5, 6, 7, 400] }] }), "prompt[3]"),
        (json!({ "prompts": [{ "token_ids": [5] }, { "token_ids": [6, 400] }] }), "prompt[1][1]"),
        (json!({ "stop_token_ids": [1, 400] }), "stop_token_ids[1]"),
        (json!({ "sampling": { "allowed_token_ids": [400] } }), "allowed_token_ids[0]"),
        (json!({ "sampling": { "logit_bias": { "400": 1 } } }), "logit_bias"),
    ] {
        let (message, param, _) = refusal(&bench, &extra);
        assert_eq!(message, format!("{place}: token id 400 is outside the vocabulary of 388"));
        assert_eq!(param.as_deref(), Some(place));
    }
}

#[test]
fn test_seeds_are_whole_numbers_of_64_bits_with_a_sign() {
    let bench = Bench::auto(says("x"));
    for seed in [json!(0), json!(-1), json!(i64::MIN), json!(i64::MAX)] {
        bench.body(&json!({
            "prompts": [{ "token_ids": [5] }],
            "sampling": { "seed": seed },
            "output": { "format": "completion" },
        }));
    }
    let document = br#"{"prompts": [{"token_ids": [5]}], "output": {"format": "chat"},
        "sampling": {"seed": 9223372036854775808}}"#;
    let error = bench.engine.submit(document).unwrap_err().to_string();
    assert!(
        error.starts_with("seed: must be a whole number from -9223372036854775808 to "),
        "{error}"
    );
}

#[test]
fn test_a_stop_string_is_as_long_as_its_characters() {
    let bench = Bench::auto(says("x"));
    let asked = |stop: String| {
        let document = json!({ "prompts": [{ "token_ids": [5] }], "stop": [stop],
            "output": { "format": "delta" } });
        bench.engine.submit(document.to_string().as_bytes()).err().map(|error| error.to_string())
    };
    assert_eq!(asked("é".repeat(1024)), None);
    let error = asked("é".repeat(1025)).unwrap();
    assert_eq!(error, "stop[0]: must be a string of 1 to 1024 characters, not 1025 characters");
}

#[test]
fn test_lengths_are_refused_with_the_numbers_and_exact_at_the_edge() {
    let bench = Bench::auto(says("a"));
    let prompt = |len: u32| json!([{ "token_ids": vec![5; len as usize] }]);
    let full = json!({ "prompts": prompt(MAX_MODEL_LEN) });
    let (message, param, code) = refusal(&bench, &full);
    assert_eq!(param.as_deref(), Some("prompt"));
    assert_eq!(code, Some("context_length_exceeded"));
    assert!(message.contains("200 tokens"), "{message}");
    let sum = json!({ "prompts": prompt(150), "max_tokens": 51 });
    let (message, param, code) = refusal(&bench, &sum);
    assert_eq!((param.as_deref(), code), (Some("max_tokens"), Some("context_length_exceeded")));
    assert!(message.contains("150") && message.contains("51") && message.contains("201"));

    let body = bench.body(&json!({
        "prompts": prompt(MAX_MODEL_LEN - 1),
        "ignore_eos": true,
        "output": { "format": "completion" },
    }));
    assert_eq!(body["usage"]["completion_tokens"], 1);
    assert_eq!(body["choices"][0]["finish_reason"], "length");

    let body = bench.body(&json!({
        "prompts": prompt(300),
        "truncate_prompt_tokens": 10,
        "output": { "format": "completion" },
    }));
    assert_eq!(body["usage"]["prompt_tokens"], 10);
    let body = bench.body(&json!({
        "prompts": prompt(300),
        "max_tokens": 20,
        "truncate_prompt_tokens": -1,
        "output": { "format": "completion" },
    }));
    assert_eq!(body["usage"]["prompt_tokens"], 180);
}

#[test]
fn test_an_empty_text_starts_from_the_start_token() {
    let bench = Bench::auto(says("a"));
    let body = bench.body(&json!({
        "prompts": [{ "text": "" }],
        "output": { "format": "completion" },
    }));
    assert_eq!(body["usage"]["prompt_tokens"], 1);
}
