//! `prompt_logprobs` as vLLM returns them, alone and beside an echo. The scripted executor gives -0.5 for
//! a token and -0.5 - k for the ids after it.

use serde_json::{Value, json};

use super::harness::{Bench, says};
use crate::error::EngineError;

const PROMPT: &str = "Hello 🙂 there";

fn body(bench: &Bench, format: &str, sampling: Value, extra: Value) -> Value {
    let mut request = json!({
        "prompts": [{ "text": PROMPT, "add_special_tokens": false }],
        "sampling": sampling,
        "output": { "format": format },
    });
    for (key, value) in extra.as_object().unwrap() {
        request[key] = value.clone();
    }
    bench.body(&request)
}

/// Null for the first token, then each token's own entry first and `top` others at most.
fn assert_entries(bench: &Bench, entries: &Value, prompt: &str, top: usize) {
    let ids: Vec<u32> = bench.ids(prompt).iter().map(|id| id.0).collect();
    let entries = entries.as_array().unwrap();
    assert_eq!(entries.len(), ids.len());
    assert_eq!(entries[0], Value::Null);
    for (entry, id) in entries.iter().zip(ids).skip(1) {
        let entry = entry.as_object().unwrap();
        let own = &entry[&id.to_string()];
        assert_eq!((&own["logprob"], &own["rank"]), (&json!(-0.5), &json!(1)), "{entry:?}");
        assert!(own["decoded_token"].is_string());
        // The executor's alternatives begin with the token itself.
        assert_eq!(entry.len(), top.max(1), "{entry:?}");
        let mut ranks: Vec<u64> = entry.values().map(|it| it["rank"].as_u64().unwrap()).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, (1..=entry.len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn a_completion_has_them_in_each_choice_and_a_chat_beside_them() {
    let bench = Bench::auto(says("done"));
    for top in [0, 1, 3] {
        let sampling = json!({ "prompt_logprobs": top });
        let whole = body(&bench, "completion", sampling.clone(), json!({ "n": 2 }));
        for choice in whole["choices"].as_array().unwrap() {
            assert_entries(&bench, &choice["prompt_logprobs"], PROMPT, top);
            assert_eq!((&choice["text"], &choice["logprobs"]), (&json!("done"), &Value::Null));
        }
        assert_eq!(whole.get("prompt_logprobs"), None);
        let chat = body(&bench, "chat", sampling, json!({ "n": 2 }));
        assert_entries(&bench, &chat["prompt_logprobs"], PROMPT, top);
        assert_eq!(chat["choices"][0].get("prompt_logprobs"), None);
    }
    let plain = body(&bench, "completion", json!({ "logprobs": 1 }), json!({}));
    assert_eq!(plain["choices"][0].get("prompt_logprobs"), None);
}

#[test]
fn an_echo_beside_them_keeps_its_own_number_of_alternatives() {
    let bench = Bench::auto(says("done"));
    let num_prompt = bench.ids(PROMPT).len();
    let output = json!({ "format": "completion", "echo": true });
    for (echoed, listed) in [(1, 3), (3, 1), (2, 2), (0, 4)] {
        let sampling = json!({ "logprobs": echoed, "prompt_logprobs": listed });
        let both = body(&bench, "completion", sampling, json!({ "output": output, "n": 2 }));
        let sampling = json!({ "logprobs": echoed });
        let echo = body(&bench, "completion", sampling, json!({ "output": output, "n": 2 }));
        for (choice, alone) in
            both["choices"].as_array().unwrap().iter().zip(echo["choices"].as_array().unwrap())
        {
            assert_eq!(choice["logprobs"], alone["logprobs"]);
            assert!(choice["logprobs"]["tokens"].as_array().unwrap().len() > num_prompt);
            assert_entries(&bench, &choice["prompt_logprobs"], PROMPT, listed);
        }
    }
    // Log-probs of the answer alone are not preceded by the prompt's.
    let sampling = json!({ "logprobs": 1, "prompt_logprobs": 1 });
    let plain = body(&bench, "completion", sampling, json!({ "max_tokens": 1 }));
    assert_eq!(plain["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 1);
}

#[test]
fn a_prompt_of_one_token_has_one_entry() {
    let bench = Bench::auto(says("x"));
    let one = json!({ "prompts": [{ "token_ids": [7] }], "max_tokens": 1 });
    let mut listed = one.clone();
    listed["sampling"] = json!({ "prompt_logprobs": 2 });
    listed["output"] = json!({ "format": "completion" });
    assert_eq!(bench.body(&listed)["choices"][0]["prompt_logprobs"], json!([null]));
    let mut echoed = one;
    echoed["sampling"] = json!({ "logprobs": 2 });
    echoed["output"] = json!({ "format": "completion", "echo": true });
    let choice = &bench.body(&echoed)["choices"][0];
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -0.5]));
}

#[test]
fn streams_and_numbers_out_of_range_are_refused() {
    let bench = Bench::auto(says("x"));
    for (sampling, output) in [
        (json!({ "prompt_logprobs": 0 }), json!({ "format": "completion", "stream": true })),
        (json!({ "prompt_logprobs": 1 }), json!({ "format": "chat", "stream": true })),
        (json!({ "prompt_logprobs": 1 }), json!({ "format": "delta" })),
        (json!({ "prompt_logprobs": -1 }), json!({ "format": "completion" })),
        (json!({ "prompt_logprobs": 21 }), json!({ "format": "completion" })),
    ] {
        let request = json!({
            "prompts": [{ "text": "x" }], "sampling": sampling, "output": output,
        });
        match bench.submit(&request) {
            Err(EngineError::Refused { param, status: 400, .. }) => {
                assert_eq!(param.as_deref(), Some("prompt_logprobs"), "{request}");
            }
            other => panic!("{request}: {other:?}"),
        }
    }
}
