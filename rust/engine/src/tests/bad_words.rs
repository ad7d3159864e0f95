//! Bad words on a scripted device: alone, beside everything else that binds answers, under preemption.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::harness::{Bench, EOS, Script, says, tokenizer};
use super::structured::{HERMES, THINKING, answer, assert_fits, grammar, tools};
use crate::outbox::Payload;

fn content(choice: &Value) -> &str {
    choice["message"]["content"].as_str().unwrap_or_default()
}

#[test]
fn test_no_bad_word_stands_in_an_answer_and_nothing_else_changes() {
    let said = "The theatre is there, Thea.";
    let bench = Bench::auto(says(said));
    assert_eq!(content(&answer(&bench, json!({ "bad_words": ["THE", "ZZ"] }))), said);
    for words in [json!(["the"]), json!(["eat", "re"]), json!([" "]), json!(["e, T", "."])] {
        for more in [json!({}), json!({ "ignore_eos": true, "max_tokens": 40 })] {
            let mut extra = json!({ "bad_words": words });
            extra.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let choice = answer(&bench, extra);
            let text = content(&choice);
            assert_ne!(text, said);
            assert!(text.starts_with("The") || words == json!(["eat", "re"]), "{text}");
            for word in words.as_array().unwrap() {
                assert!(!text.contains(word.as_str().unwrap()), "{word}: {text}");
            }
        }
    }
}

#[test]
fn test_bad_words_bind_beside_a_grammar() {
    let bench = Bench::auto(says("{\"a\": 2, \"b\": true}"));
    let words = json!({ "grammar": grammar(), "bad_words": ["true", "2", "1"] });
    let choice = answer(&bench, words);
    assert_fits(content(&choice));
    let value: Value = serde_json::from_str(content(&choice)).unwrap();
    assert_eq!(value, json!({ "a": 3, "b": false }));
    assert_eq!(choice["finish_reason"], "stop");
}

#[test]
fn test_an_answer_without_a_way_on_ends() {
    let bench = Bench::auto(says("nothing at all"));
    let choices = json!({ "kind": "choice", "field": "guided_choice", "choices": ["no", "nor"] });
    let choice = answer(&bench, json!({ "grammar": choices, "bad_words": ["no"] }));
    assert!(["", "n"].contains(&content(&choice)), "{choice}");
    assert_eq!(choice["finish_reason"], "content_filter");
    // What a free answer is left with can be nothing too; the scripted device knows masks alone.
    let bench = Bench::auto(says("a"));
    let ids: Vec<u32> = tokenizer().encode("a", false).unwrap();
    let allowed = json!({ "sampling": { "allowed_token_ids": ids }, "bad_words": ["aa", "b"] });
    let choice = answer(&bench, allowed);
    assert_eq!((content(&choice), &choice["finish_reason"]), ("a", &json!("content_filter")));
    let bench = Bench::auto(says("aaaa"));
    let held = json!({
        "sampling": { "allowed_token_ids": [ids[0], EOS] }, "bad_words": ["aa"], "min_tokens": 3,
    });
    let choice = answer(&bench, held.clone());
    assert_eq!((content(&choice), &choice["finish_reason"]), ("a", &json!("content_filter")));
    let mut free = held;
    free["min_tokens"] = json!(1);
    let choice = answer(&bench, free);
    assert_eq!((content(&choice), &choice["finish_reason"]), ("a", &json!("stop")));
}

#[test]
fn test_bad_words_bind_calls_and_not_reasoning() {
    let bench = Bench::with_template(says("I would rather not."), HERMES);
    let required = json!({
        "chat": { "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false },
        "bad_words": ["count", "1", "2"],
    });
    let choice = answer(&bench, required);
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "skip");
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["n"].as_i64().unwrap() > 2, "{arguments}");
    assert_eq!(choice["finish_reason"], "tool_calls");

    let bench = Bench::with_template(says("<think>\nhm, hm\n</think>\n\nhm, no."), THINKING);
    let choice = answer(&bench, json!({ "bad_words": ["hm", "\n"] }));
    assert_eq!(choice["message"]["reasoning_content"], "hm, hm");
    assert!(content(&choice).starts_with('h') && !content(&choice).contains("hm"), "{choice}");
}

#[test]
fn test_masks_come_again_after_preemption() {
    // Each answer begins a bad word at every fourth token.
    let ids: Vec<u32> = tokenizer().encode("thex", false).unwrap();
    let cycle = move |index: usize| ingle_core::TokenId(ids[index % ids.len()]);
    let script = || -> Script {
        let cycle = cycle.clone();
        Box::new(move |_, index| cycle(index))
    };
    let request = |prompt: u32| {
        json!({
            "prompts": [{ "token_ids": [prompt, 6, 7] }], "max_tokens": 100, "n": 2,
            "bad_words": ["the", "xt"], "ignore_eos": true,
            "output": { "format": "completion", "return_token_ids": true },
        })
    };
    let texts = |body: &Value| -> Vec<String> {
        let choices = body["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let alone = texts(&Bench::auto(script()).body(&request(5)));
    assert!(alone.iter().all(|text| !text.contains("the") && !text.contains("xt")), "{alone:?}");
    assert_eq!(alone[0], alone[1]);
    let bench = Bench::lockstep(script());
    let mut open: Vec<u64> =
        (5..10).map(|prompt| bench.submit(&request(prompt)).unwrap()).collect();
    while !open.is_empty() {
        for event in bench.advance() {
            open.retain(|key| *key != event.key);
            let Payload::Body(body) = event.payload else { panic!("{:?}", event.payload) };
            assert_eq!(texts(&serde_json::from_slice(&body).unwrap()), alone);
        }
    }
    let preempted = bench.engine.engines[0].metrics.gauges.preemptions.load(Ordering::Relaxed);
    assert!(preempted > 0);
}

#[test]
fn test_refused_words_are_named() {
    let bench = Bench::auto(says("x"));
    for words in [json!([""]), json!(["a\u{fffd}"]), json!(vec!["a"; 129])] {
        let request = json!({
            "prompts": [{ "token_ids": [5] }], "bad_words": words,
            "output": { "format": "completion" },
        });
        let error = bench.submit(&request).unwrap_err();
        assert!(error.to_string().starts_with("bad_words: "), "{error}");
    }
}
