//! What clients read, byte by byte.

use serde_json::json;

use super::harness::{Bench, events_of, says};

#[test]
fn test_completion_stream_is_exact() {
    let bench = Bench::auto(says("a \"b\"\n"));
    let stream = bench.stream(&json!({
        "prompts": [{ "token_ids": [5, 6, 7] }],
        "max_tokens": 16,
        "output": { "format": "completion", "stream": true, "response_id": "cmpl-1", "created": 7 },
    }));
    let event = |text: &str, rest: &str| {
        format!(
            "data: {{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":7,\"model\":\"tiny\",\
             \"choices\":[{{\"index\":0,\"text\":\"{text}\",\"logprobs\":null,\
             \"finish_reason\":{rest}}}]}}\n\n"
        )
    };
    let texts: Vec<String> = bench.ids("a \"b\"\n").iter().map(|id| piece(&bench, id.0)).collect();
    assert!(texts.len() > 2, "{texts:?}");
    let mut want: String = texts.iter().map(|text| event(text, "null")).collect();
    want.push_str(&event("", "\"stop\",\"stop_reason\":null"));
    want.push_str("data: [DONE]\n\n");
    assert_eq!(stream, want);
}

/// A token's text as the inside of a JSON string.
fn piece(bench: &Bench, id: u32) -> String {
    let text = bench.engine.token_texts(&[id]).unwrap().remove(0);
    let json = serde_json::to_string(&text).unwrap();
    json[1..json.len() - 1].to_owned()
}

#[test]
fn test_chat_stream_is_exact() {
    let bench = Bench::auto(says("no"));
    let stream = bench.stream(&json!({
        "prompts": [{ "chat": { "messages": [{ "role": "user", "content": "go" }] } }],
        "output": {
            "format": "chat", "stream": true, "response_id": "c", "created": 1, "include_usage": true
        },
    }));
    let prompt_tokens = bench
        .engine
        .tokenize(br#"{"chat": {"messages": [{"role": "user", "content": "go"}]}}"#)
        .unwrap()
        .len();
    let head = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\
                \"model\":\"tiny\",\"choices\":[";
    let choice = |delta: &str, rest: &str| {
        format!(
            "{head}{{\"index\":0,\"delta\":{{{delta}}},\"logprobs\":null,\"finish_reason\":{rest}}}],\
             \"usage\":null}}\n\n"
        )
    };
    let texts: Vec<String> = bench.ids("no").iter().map(|id| piece(&bench, id.0)).collect();
    let mut want = String::new();
    for (i, text) in texts.iter().enumerate() {
        let role = if i == 0 { "\"role\":\"assistant\"," } else { "" };
        want.push_str(&choice(&format!("{role}\"content\":\"{text}\""), "null"));
    }
    want.push_str(&choice("", "\"stop\",\"stop_reason\":null"));
    let completion = texts.len() + 1;
    let total = prompt_tokens + completion;
    want.push_str(&format!(
        "{head}],\"usage\":{{\"prompt_tokens\":{prompt_tokens},\"total_tokens\":{total},\
         \"completion_tokens\":{completion},\"prompt_tokens_details\":{{\"cached_tokens\":0}}}}}}\n\n\
         data: [DONE]\n\n"
    ));
    assert_eq!(stream, want);
}

#[test]
fn test_a_chat_without_text_still_gives_the_role() {
    let bench = Bench::auto(says(""));
    let request = json!({
        "prompts": [{ "token_ids": [5] }],
        "output": { "format": "chat", "stream": true },
    });
    let events = events_of(&bench.stream(&request));
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(events[0]["choices"][0]["finish_reason"], "stop");
}

#[test]
fn test_chunk_framing_holds_the_same_events() {
    let bench = Bench::auto(says("hello, chunked world"));
    let mut request = json!({
        "prompts": [{ "token_ids": [5] }],
        "output": { "format": "completion", "stream": true, "include_usage": true },
    });
    let plain = bench.stream(&request);
    request["output"]["chunked"] = json!(true);
    let framed = bench.stream(&request);
    let mut joined = String::new();
    let mut rest = framed.as_str();
    while rest != "0\r\n\r\n" {
        let (size, tail) = rest.split_once("\r\n").unwrap();
        assert!(!size.starts_with('0') && size == size.trim(), "chunk size {size:?}");
        let size = usize::from_str_radix(size, 16).unwrap();
        joined.push_str(&tail[..size]);
        rest = tail[size..].strip_prefix("\r\n").unwrap();
    }
    // The second run finds its prompt in the cache or not, depending on its length: one token here.
    assert_eq!(joined, plain);
}

#[test]
fn test_joined_deltas_are_the_plain_text_and_no_character_is_cut() {
    let text = "naïve café 🙂👩‍👧 日本語 Zürich 🙂 done";
    let bench = Bench::auto(says(text));
    for format in ["completion", "chat"] {
        let mut request = json!({
            "prompts": [{ "token_ids": [5, 6] }],
            "output": { "format": format, "stream": true, "include_usage": true },
        });
        let events = events_of(&bench.stream(&request));
        request["output"]["stream"] = json!(false);
        let body = bench.body(&request);
        let mut joined = String::new();
        for event in &events[..events.len() - 1] {
            let choice = &event["choices"][0];
            let piece = choice["text"].as_str().or(choice["delta"]["content"].as_str());
            let finished = !choice["finish_reason"].is_null();
            assert!(finished || piece.is_some_and(|text| !text.is_empty()), "{event}");
            joined.push_str(piece.unwrap_or_default());
        }
        let choice = &body["choices"][0];
        let plain = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
        assert_eq!(joined, text);
        assert_eq!(plain, text);
        let last = events.last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], body["usage"]["completion_tokens"]);
        assert_eq!(last["usage"]["total_tokens"], body["usage"]["total_tokens"]);
    }
}

#[test]
fn test_continuous_usage_counts_up() {
    let bench = Bench::auto(says("one two three"));
    let events = events_of(&bench.stream(&json!({
        "prompts": [{ "token_ids": [5, 6] }],
        "output": { "format": "completion", "stream": true, "continuous_usage_stats": true },
    })));
    let counts: Vec<u64> =
        events.iter().map(|e| e["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted() && counts[0] == 1, "{counts:?}");
    assert!(events.iter().all(|e| e["usage"]["prompt_tokens"] == 2 && e["choices"] != json!([])));
}

#[test]
fn test_several_prompts_and_choices_keep_their_indexes() {
    // The answer is the prompt's own first token, then end-of-text.
    let bench = Bench::auto(Box::new(
        |prompt, index| {
            if index < 3 { prompt[0] } else { ingle_core::TokenId(1) }
        },
    ));
    let mut request = json!({
        "prompts": [{ "token_ids": [40, 41] }, { "token_ids": [50, 51, 52] }],
        "n": 2,
        "output": { "format": "completion", "return_token_ids": true },
    });
    let body = bench.body(&request);
    let choices = body["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    for (index, choice) in choices.iter().enumerate() {
        let first = if index < 2 { 40 } else { 50 };
        assert_eq!(choice["index"], index);
        assert_eq!(choice["token_ids"], json!([first, first, first, 1]));
        assert_eq!(choice["prompt_token_ids"][0], first);
        assert_eq!(choice["finish_reason"], "stop");
    }
    assert_eq!(body["usage"]["prompt_tokens"], 5);
    assert_eq!(body["usage"]["completion_tokens"], 16);

    request["output"]["stream"] = json!(true);
    let events = events_of(&bench.stream(&request));
    for (index, plain) in choices.iter().enumerate() {
        let mut text = String::new();
        let mut finishes = 0;
        for event in &events {
            for choice in event["choices"].as_array().unwrap() {
                if choice["index"] == index {
                    text.push_str(choice["text"].as_str().unwrap());
                    finishes += usize::from(!choice["finish_reason"].is_null());
                }
            }
        }
        assert_eq!(text, plain["text"].as_str().unwrap());
        assert_eq!(finishes, 1);
    }
}
