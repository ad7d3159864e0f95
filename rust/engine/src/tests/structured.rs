//! Grammars, tool calls and reasoning on a scripted device: the masks reach it, the answers are split.

use serde_json::{Value, json};

use super::harness::{Bench, EOS, Script, events_of, says};
use crate::error::EngineError;

pub(super) const HERMES: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}{% if tools %}{{ tools | length }}<tool_call>{% endif %}<|im_start|>assistant\n";
pub(super) const THINKING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}{% if tools %}<tool_call>{% endif %}<|im_start|>assistant\n\
    {% if quiet %}<think>\n\n</think>\n\n{% elif open %}<think>\n{% endif %}";

fn chat(extra: Value) -> Value {
    let mut request = json!({
        "prompts": [{ "chat": { "messages": [{ "role": "user", "content": "Hi" }] } }],
        "max_tokens": 140,
        "output": { "format": "chat", "response_id": "chatcmpl-1" },
    });
    for (key, value) in extra.as_object().unwrap() {
        match key.as_str() {
            "chat" => {
                for (key, value) in value.as_object().unwrap() {
                    request["prompts"][0]["chat"][key] = value.clone();
                }
            }
            key => request[key] = value.clone(),
        }
    }
    request
}

pub(super) fn tools() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": { "n": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["n"], "additionalProperties": false
    });
    let function = |name| json!({ "function": { "name": name, "parameters": parameters } });
    json!([function("count"), function("skip")])
}

/// The plain answer's choice; the streamed one must say the same.
pub(super) fn answer(bench: &Bench, extra: Value) -> Value {
    let mut request = chat(extra);
    let plain = bench.body(&request)["choices"][0].clone();
    request["output"]["stream"] = json!(true);
    let events = events_of(&bench.stream(&request));
    let mut joined = json!({ "content": "", "reasoning_content": "", "tool_calls": [] });
    for (i, event) in events.iter().enumerate() {
        let delta = &event["choices"][0]["delta"];
        assert_eq!(delta.get("role").is_some(), i == 0, "{event}");
        let is_last = i + 1 == events.len();
        assert!(is_last || delta.as_object().unwrap().len() > usize::from(i == 0), "{event}");
        for key in ["content", "reasoning_content"] {
            let more = delta[key].as_str().unwrap_or_default();
            joined[key] = json!(joined[key].as_str().unwrap().to_owned() + more);
        }
        for call in delta["tool_calls"].as_array().unwrap_or(&vec![]) {
            let calls = joined["tool_calls"].as_array_mut().unwrap();
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                calls.push(call.clone());
                continue;
            }
            let function = &mut calls[index]["function"];
            let more = call["function"]["arguments"].as_str().unwrap();
            function["arguments"] =
                json!(function["arguments"].as_str().unwrap().to_owned() + more);
        }
    }
    let message = &plain["message"];
    for key in ["content", "reasoning_content"] {
        assert_eq!(joined[key], json!(message[key].as_str().unwrap_or_default()), "{key}");
    }
    let shorter = |calls: &Value| -> Vec<Value> {
        let calls = calls.as_array().cloned().unwrap_or_default();
        calls.iter().map(|call| call["function"].clone()).collect()
    };
    assert_eq!(shorter(&joined["tool_calls"]), shorter(&message["tool_calls"]));
    let last = &events.last().unwrap()["choices"][0];
    assert_eq!(last["finish_reason"], plain["finish_reason"]);
    plain
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "a": { "enum": [1, 2, 3] }, "b": { "type": "boolean" } },
        "required": ["a", "b"], "additionalProperties": false
    })
}

pub(super) fn grammar() -> Value {
    json!({ "kind": "json_schema", "field": "response_format", "schema": schema() })
}

pub(super) fn assert_fits(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!((1..=3).contains(&value["a"].as_i64().unwrap()) && value["b"].is_boolean(), "{text}");
}

#[test]
fn test_an_answer_fits_the_schema_whatever_the_model_says() {
    for text in ["Of course! Here is", "{\"b\": true}", "{\"a\": 2,\n \"b\": false} and more", ""] {
        let bench = Bench::auto(says(text));
        let choice = answer(&bench, json!({ "grammar": grammar() }));
        assert_fits(choice["message"]["content"].as_str().unwrap());
        assert_eq!(choice["finish_reason"], "stop");
    }
}

#[test]
fn test_positions_are_per_choice() {
    let bench = Bench::auto(says("{\"a\": 2, \"b\": false}"));
    let request = json!({
        "prompts": [{ "token_ids": [5, 6] }, { "token_ids": [7] }],
        "n": 2,
        "max_tokens": 40,
        "sampling": { "logit_bias": { "40": 1 } },
        "grammar": grammar(),
        "output": { "format": "completion" },
    });
    for _ in 0..2 {
        let body = bench.body(&request);
        let choices = body["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 4);
        choices.iter().for_each(|choice| assert_fits(choice["text"].as_str().unwrap()));
    }
}

#[test]
fn test_cut_answers_are_partial_and_stops_work_inside() {
    let bench = Bench::auto(says("{\"a\": 2, \"b\": false}"));
    let cut = answer(&bench, json!({ "grammar": grammar(), "max_tokens": 3 }));
    assert_eq!(cut["finish_reason"], "length");
    assert!("{\"a\": 2, \"b\": false}".starts_with(cut["message"]["content"].as_str().unwrap()));
    let stopped = answer(&bench, json!({ "grammar": grammar(), "stop": ["\"b"] }));
    assert_eq!(stopped["finish_reason"], "stop");
    assert_eq!(stopped["message"]["content"], "{\"a\": 2, ");
    let logged = bench.body(&chat(json!({ "grammar": grammar(), "sampling": { "logprobs": 1 } })));
    assert_fits(logged["choices"][0]["message"]["content"].as_str().unwrap());
}

#[test]
fn test_grammars_and_free_requests_share_steps_and_aborts_leave_nothing() {
    let long: Script = Box::new(|_, index| ingle_core::TokenId(40 + index as u32 % 20));
    let bench = Bench::manual(long);
    let endless = json!({ "kind": "regex", "field": "guided_regex", "regex": "[a-z ]+" });
    let bound = |stream| {
        json!({
            "prompts": [{ "token_ids": [5, 6, 7] }], "max_tokens": 100, "grammar": endless,
            "output": { "format": "completion", "stream": stream },
        })
    };
    let aborted = bench.submit(&bound(true)).unwrap();
    let free = bench.submit(&json!({
        "prompts": [{ "token_ids": [8] }], "max_tokens": 12, "output": { "format": "completion" },
    }));
    let short = bench.submit(&chat(json!({ "grammar": grammar(), "max_tokens": 30 }))).unwrap();
    for _ in 0..4 {
        bench.driver.step();
    }
    bench.engine.abort(aborted);
    let mut open = vec![free.unwrap(), short];
    while !open.is_empty() {
        for event in bench.advance() {
            assert_ne!(event.key, aborted);
            open.retain(|key| *key != event.key);
        }
    }
    let health: Value = serde_json::from_slice(&bench.engine.health()).unwrap();
    assert_eq!(health["in_system"], 0);
    // Dropped while a step waits for masks that nobody computes any more.
    bench.submit(&bound(true)).unwrap();
}

#[test]
fn test_calls_are_sent_name_first_with_a_reason_of_their_own() {
    let said = "Let me see.\n<tool_call>\n{\"name\": \"count\", \"arguments\": {\"n\": 12}}\n</tool_call>\n\
                <tool_call>\n{\"name\": \"skip\", \"arguments\": {}}\n</tool_call>";
    let bench = Bench::with_template(says(said), HERMES);
    let choice = answer(&bench, json!({ "chat": { "tools": tools() } }));
    let message = &choice["message"];
    assert_eq!(message["content"], "Let me see.");
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["function"], json!({ "name": "count", "arguments": "{\"n\": 12}" }));
    assert_eq!(calls[1]["function"], json!({ "name": "skip", "arguments": "{}" }));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(choice["finish_reason"], "tool_calls");
    // One call only: the answer ends with it.
    let single = json!({ "chat": { "tools": tools(), "parallel_tool_calls": false } });
    let choice = answer(&bench, single);
    assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(choice["finish_reason"], "tool_calls");
    // Nobody may call: what looks like calls is text.
    let none = json!({ "chat": { "tools": tools(), "tool_choice": "none" } });
    let choice = answer(&bench, none);
    assert_eq!(choice["message"]["content"], said);
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["message"].get("tool_calls"), None);
}

#[test]
fn test_calls_can_be_forced_and_bound() {
    let bench = Bench::with_template(says("I would rather not."), HERMES);
    let required = json!({ "chat": { "tools": tools(), "tool_choice": "required",
                                     "parallel_tool_calls": false } });
    let named = json!({ "chat": { "tools": tools(), "tool_choice": { "function": "skip" } } });
    for (extra, want) in [(required, None), (named, Some("skip"))] {
        let choice = answer(&bench, extra);
        let message = &choice["message"];
        assert_eq!(message["content"], Value::Null);
        let calls = message["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        let arguments = calls[0]["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert!((1..=9).contains(&arguments["n"].as_i64().unwrap()));
        assert!(want.is_none_or(|want| calls[0]["function"]["name"] == want));
        assert_eq!(choice["finish_reason"], "tool_calls");
    }
    // The model's choice, and arguments that do not fit: strict binds them.
    let said = "<tool_call>\n{\"name\": \"count\", \"arguments\": {\"n\": \"many\"}}\n</tool_call>";
    let bench = Bench::with_template(says(said), HERMES);
    let mut strict = tools();
    strict[0]["function"]["strict"] = json!(true);
    let choice = answer(&bench, json!({ "chat": { "tools": strict } }));
    let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
    let arguments: Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
    assert!((1..=9).contains(&arguments["n"].as_i64().unwrap()));
}

#[test]
fn test_a_forced_call_that_is_cut_before_its_name_is_nothing() {
    let bench = Bench::with_template(says("I would rather not."), HERMES);
    let named = json!({ "function": "skip" });
    for choice in [json!("required"), named] {
        for max_tokens in [0, 1, 3, 8] {
            let chat = json!({ "tools": tools(), "tool_choice": choice });
            let choice = answer(&bench, json!({ "chat": chat, "max_tokens": max_tokens }));
            assert_eq!(choice["message"]["content"], Value::Null);
            assert_eq!(choice["message"].get("tool_calls"), None);
            assert_eq!(choice["finish_reason"], "length");
        }
    }
    let mut request = chat(json!({ "max_tokens": 3,
        "chat": { "tools": tools(), "tool_choice": "required" } }));
    request["output"]["stream"] = json!(true);
    for event in events_of(&bench.stream(&request)) {
        assert_eq!(event["choices"][0]["delta"].get("content"), None, "{event}");
    }
    // Where calls are the model's choice, the markup of one that the end cuts is not content either.
    let bench = Bench::with_template(says("<tool_call>{\"na"), HERMES);
    let choice = answer(&bench, json!({ "chat": { "tools": tools() } }));
    assert_eq!(choice["message"]["content"], "");
}

#[test]
fn test_beside_a_schema_the_answer_is_a_call_or_fits() {
    let call = "<tool_call>\n{\"name\": \"count\", \"arguments\": {\"n\": 3}}\n</tool_call>";
    let fits = r#"{"a": 2, "b": false}"#;
    for template in [HERMES, THINKING] {
        let thoughts = if template == THINKING { "<think>\nhm\n</think>\n\n" } else { "" };
        let ask = |said: &str| {
            let bench = Bench::with_template(says(&format!("{thoughts}{said}")), template);
            let chat = json!({ "tools": tools() });
            let choice = answer(&bench, json!({ "grammar": grammar(), "chat": chat }));
            let wanted = if thoughts.is_empty() { Value::Null } else { json!("hm") };
            assert_eq!(choice["message"]["reasoning_content"], wanted);
            choice
        };
        let choice = ask(call);
        let [called] = &choice["message"]["tool_calls"].as_array().unwrap()[..] else {
            panic!("{choice}")
        };
        assert_eq!(called["function"], json!({ "name": "count", "arguments": "{\"n\": 3}" }));
        assert_eq!(choice["message"]["content"], Value::Null);
        assert_eq!(choice["finish_reason"], "tool_calls");
        let choice = ask(fits);
        assert_eq!(choice["message"]["content"], fits);
        assert_eq!(choice["message"].get("tool_calls"), None);
        assert_eq!(choice["finish_reason"], "stop");
        // Neither: it is made one of both.
        let choice = ask("Of course!");
        if choice["finish_reason"] == "stop" {
            assert_fits(choice["message"]["content"].as_str().unwrap());
        } else {
            assert_eq!(choice["message"]["content"], Value::Null, "{choice}");
        }
    }
}

#[test]
fn test_reasoning_is_split_off_also_where_the_prompt_opens_it() {
    let bench = Bench::with_template(says("<think>\nhm, hm\n</think>\n\nYes."), THINKING);
    let choice = answer(&bench, json!({}));
    assert_eq!(choice["message"]["reasoning_content"], "hm, hm");
    assert_eq!(choice["message"]["content"], "Yes.");
    let open = json!({ "chat": { "template_kwargs": { "open": true } } });
    let bench = Bench::with_template(says("hm, hm\n</think>\n\nYes."), THINKING);
    let choice = answer(&bench, open.clone());
    assert_eq!(choice["message"]["reasoning_content"], "hm, hm");
    assert_eq!(choice["message"]["content"], "Yes.");
    // Cut off inside: no content.
    let mut cut = open.clone();
    cut["max_tokens"] = json!(2);
    let choice = answer(&bench, cut);
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["finish_reason"], "length");
    let quiet = json!({ "chat": { "template_kwargs": { "quiet": true } } });
    let choice = answer(&bench, quiet);
    assert_eq!(choice["message"]["content"], "hm, hm\n</think>\n\nYes.");
    // Turned off where the template can; one that opens it all the same is refused.
    let off = json!({ "chat": { "reasoning_off": true, "template_kwargs": { "quiet": true } } });
    assert_eq!(answer(&bench, off)["message"]["content"], "hm, hm\n</think>\n\nYes.");
    let mut vain = open.clone();
    vain["chat"]["reasoning_off"] = json!(true);
    match bench.submit(&chat(vain)) {
        Err(EngineError::Refused { message, param, .. }) => {
            assert_eq!(param.as_deref(), Some("reasoning_effort"));
            assert!(message.contains("always reasons"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    // A grammar binds what follows the reasoning.
    let mut bound = open;
    bound["grammar"] =
        json!({ "kind": "choice", "field": "guided_choice", "choices": ["no", "maybe"] });
    let choice = answer(&bench, bound);
    assert_eq!(choice["message"]["reasoning_content"], "hm, hm");
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(["no", "maybe"].contains(&content), "{content}");
}

#[test]
fn test_a_stop_longer_than_the_markers_breaks_no_parser() {
    let said = "<think>why not</think>Sure.<tool_call>{\"name\": \"count\", \"arguments\": {\"n\": 1}}\
                </tool_call>";
    let bench = Bench::with_template(says(said), THINKING);
    for stop in ["this is a long stop that never comes", "</tool_call> and then more text"] {
        let choice = answer(&bench, json!({ "chat": { "tools": tools() }, "stop": [stop] }));
        let message = &choice["message"];
        assert_eq!(message["reasoning_content"], "why not");
        assert_eq!(message["content"], "Sure.");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"n\": 1}");
        assert_eq!(choice["finish_reason"], "tool_calls");
    }
    // What the client stopped is no call of the model's, however much of it is there.
    for (stop, arguments) in [("1", "{\"n\": "), ("</tool_call>", "{\"n\": 1}")] {
        let choice = answer(&bench, json!({ "chat": { "tools": tools() }, "stop": [stop] }));
        let message = &choice["message"];
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], arguments);
        assert_eq!(choice["finish_reason"], "stop", "{stop}");
    }
    let one = bench.ids("1")[0].0;
    for (more, reason) in [
        (json!({ "stop_token_ids": [one] }), "stop"),
        (json!({ "stop_token_ids": [EOS] }), "tool_calls"),
        (json!({ "max_tokens": 60 }), "length"),
    ] {
        let mut request = json!({ "chat": { "tools": tools() } });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let choice = answer(&bench, request);
        assert_eq!(choice["finish_reason"], reason, "{choice}");
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], "count");
    }
    // A stop inside the reasoning ends the answer there.
    let choice = answer(&bench, json!({ "chat": { "tools": tools() }, "stop": ["y no"] }));
    assert_eq!(choice["message"]["reasoning_content"], "wh");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["finish_reason"], "stop");
}

#[test]
fn test_what_cannot_be_enforced_is_refused_by_field() {
    let bench = Bench::with_template(says("x"), HERMES);
    let schema = |schema: Value| json!({ "grammar": { "kind": "json_schema", "field": "guided_json", "schema": schema } });
    let regex = |regex: &str| json!({ "grammar": { "kind": "regex", "field": "guided_regex", "regex": regex } });
    let bad_tool = json!([{ "function": { "name": "f", "parameters": { "type": 5 } } }]);
    let twice = json!([tools()[0], tools()[0]]);
    let bad_strict = json!([tools()[0], { "function": { "name": "f", "strict": true,
        "parameters": { "type": "object", "not": {} } } }]);
    let forced = |choice: Value| json!({ "grammar": grammar(), "chat": { "tools": tools(), "tool_choice": choice } });
    let cases = [
        (schema(json!({ "type": 5 })), "guided_json"),
        (schema(json!({ "$ref": "#" })), "guided_json"),
        (regex("a**b("), "guided_regex"),
        (regex("(?<=a)b"), "guided_regex"),
        (
            json!({ "grammar": { "kind": "choice", "field": "guided_choice", "choices": [] } }),
            "guided_choice",
        ),
        (
            json!({ "grammar": { "kind": "lark", "field": "guided_grammar", "lark": "start: x" } }),
            "guided_grammar",
        ),
        (json!({ "grammar": grammar(), "ignore_eos": true }), "ignore_eos"),
        (json!({ "grammar": grammar(), "min_tokens": 2 }), "min_tokens"),
        (
            json!({ "grammar": grammar(), "sampling": { "allowed_token_ids": [5] } }),
            "allowed_token_ids",
        ),
        (forced(json!("required")), "response_format"),
        (forced(json!({ "function": "skip" })), "response_format"),
        (json!({ "grammar": regex("a")["grammar"], "chat": { "tools": tools() } }), "guided_regex"),
        // Whichever is at fault is named.
        (
            json!({ "grammar": schema(json!({ "type": 5 }))["grammar"], "chat": { "tools": tools() } }),
            "guided_json",
        ),
        (json!({ "grammar": grammar(), "chat": { "tools": bad_strict } }), "tools"),
        (json!({ "chat": { "tools": bad_tool, "tool_choice": "required" } }), "tools"),
        (json!({ "chat": { "tools": bad_tool } }), "tools"),
        (json!({ "chat": { "tools": twice } }), "tools"),
        (
            json!({ "chat": { "tools": tools(), "tool_choice": { "function": "nobody" } } }),
            "tool_choice",
        ),
        (json!({ "chat": { "tool_choice": "required" } }), "tool_choice"),
    ];
    for (extra, field) in cases {
        match bench.submit(&chat(extra.clone())) {
            Err(EngineError::Refused { param, status, message, .. }) => {
                assert_eq!(param.as_deref(), Some(field), "{extra}: {message}");
                assert_eq!(status, 400);
                assert!(message.contains(field) && !message.contains('\n'), "{message}");
            }
            other => panic!("{extra}: {other:?}"),
        }
    }
    let health: Value = serde_json::from_slice(&bench.engine.health()).unwrap();
    assert_eq!(health["in_system"], 0);
    // The tiny models' own template has no place for tools.
    let plain = Bench::auto(says("x"));
    let refused = plain.submit(&chat(json!({ "chat": { "tools": tools() } }))).unwrap_err();
    assert!(refused.to_string().starts_with("tools: the chat template"), "{refused}");
}
