//! Stop strings, stop ids and end-of-text: what is shown, why it ended, what is counted.

use serde_json::{Value, json};

use super::harness::{Bench, EOS, events_of, says};

fn request(extra: Value) -> Value {
    let mut request = json!({
        "prompts": [{ "token_ids": [5, 6] }],
        "max_tokens": 60,
        "output": { "format": "completion", "return_token_ids": true },
    });
    for (key, value) in extra.as_object().unwrap() {
        request[key] = value.clone();
    }
    request
}

/// The plain answer; the streamed one must say the same.
fn answer(bench: &Bench, extra: Value) -> Value {
    let mut request = request(extra);
    let plain = bench.body(&request)["choices"][0].clone();
    request["output"]["stream"] = json!(true);
    let mut text = String::new();
    let mut ids = Vec::new();
    let events = events_of(&bench.stream(&request));
    for event in &events {
        let choice = &event["choices"][0];
        text.push_str(choice["text"].as_str().unwrap());
        ids.extend(choice["token_ids"].as_array().unwrap().clone());
    }
    let last = &events.last().unwrap()["choices"][0];
    assert_eq!(text, plain["text"].as_str().unwrap());
    assert_eq!(json!(ids), plain["token_ids"]);
    assert_eq!(last["finish_reason"], plain["finish_reason"]);
    assert_eq!(last["stop_reason"], plain["stop_reason"]);
    plain
}

#[test]
fn test_a_stop_across_tokens_never_shows_its_beginning() {
    let bench = Bench::auto(says("one two three four five six seven"));
    for (stop, want) in [
        (json!(["ee four fi"]), "one two thr"),
        (json!(["nothing", "four"]), "one two three "),
        (json!(["three four", "two th"]), "one "),
        (json!(["o"]), ""),
    ] {
        let choice = answer(&bench, json!({ "stop": stop }));
        assert_eq!(choice["text"], want, "{stop}");
        assert_eq!(choice["finish_reason"], "stop");
        assert!(stop.as_array().unwrap().contains(&choice["stop_reason"]), "{choice}");
    }
}

#[test]
fn test_text_held_back_for_a_stop_comes_out_at_the_end() {
    let bench = Bench::auto(says("one two three"));
    let choice = answer(&bench, json!({ "stop": ["two three four", "three!"] }));
    assert_eq!(choice["text"], "one two three");
    assert_eq!(choice["stop_reason"], Value::Null);
    let ids = bench.ids("one two three");
    let choice = answer(&bench, json!({ "stop": ["three four"], "max_tokens": ids.len() }));
    assert_eq!(choice["text"], "one two three");
    assert_eq!(choice["finish_reason"], "length");
}

#[test]
fn test_the_stop_is_included_if_asked() {
    let bench = Bench::auto(says("one two three"));
    let extra = json!({ "stop": ["two"], "include_stop_str_in_output": true });
    assert_eq!(answer(&bench, extra)["text"], "one two");
}

#[test]
fn test_usage_counts_up_to_the_token_that_completes_the_stop() {
    let bench = Bench::auto(says("one two three four"));
    let upto = bench.ids("one two three four").into_iter().scan(String::new(), |text, id| {
        text.push_str(&bench.engine.token_texts(&[id.0]).unwrap()[0]);
        Some(text.clone())
    });
    let want = 1 + upto.take_while(|text| !text.contains("two")).count();
    let body = bench.body(&request(json!({ "stop": ["two"] })));
    assert_eq!(body["usage"]["completion_tokens"], want);
    assert_eq!(body["choices"][0]["token_ids"].as_array().unwrap().len(), want);
}

#[test]
fn test_a_stop_that_ends_with_the_last_token_wins_over_length() {
    let bench = Bench::auto(says("one two"));
    let ids = bench.ids("one two");
    let choice = answer(&bench, json!({ "stop": ["two"], "max_tokens": ids.len() }));
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("one "), &json!("stop")));
}

#[test]
fn test_end_of_text_is_not_shown_and_counts() {
    let bench = Bench::auto(says("bye"));
    let choice = answer(&bench, json!({ "skip_special_tokens": false }));
    assert_eq!(choice["text"], "bye");
    assert_eq!(choice["stop_reason"], Value::Null);
    assert_eq!(choice["token_ids"].as_array().unwrap().last(), Some(&json!(EOS)));
    let extra = json!({ "skip_special_tokens": false, "include_stop_str_in_output": true });
    assert_eq!(answer(&bench, extra)["text"], "bye<|eos|>");
}

#[test]
fn test_a_stop_id_is_named() {
    let bench = Bench::auto(says("one two three"));
    let second = bench.ids("one two three")[1].0;
    let choice = answer(&bench, json!({ "stop_token_ids": [second] }));
    let first = bench.engine.token_texts(&[bench.ids("one two three")[0].0]).unwrap();
    assert_eq!(choice["text"], first[0]);
    assert_eq!(choice["stop_reason"], second);
}

#[test]
fn test_ignore_eos_goes_on_to_the_limit() {
    let bench = Bench::auto(says("bye"));
    let choice = answer(&bench, json!({ "ignore_eos": true, "max_tokens": 9 }));
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 9);
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["text"], "bye");
}

#[test]
fn test_min_tokens_keeps_stop_strings_off() {
    let bench = Bench::auto(says("two one two one two"));
    let first = bench.ids("two one").len();
    let choice = answer(&bench, json!({ "stop": ["two"], "min_tokens": first }));
    assert_eq!(choice["text"], "two one ");
}

#[test]
fn test_max_tokens_zero_is_prompt_work_only() {
    let bench = Bench::auto(says("bye"));
    let body = bench.body(&request(json!({ "max_tokens": 0 })));
    assert_eq!(body["choices"][0]["text"], "");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["choices"][0]["token_ids"], json!([]));
    assert_eq!(body["usage"]["completion_tokens"], 0);
    assert_eq!(body["usage"]["prompt_tokens"], 2);
}

/// Text before the stop that ends first (of those that end together, the longest), and that stop.
fn cut<'a>(text: &'a str, stops: &'a [String]) -> (&'a str, Option<&'a str>) {
    let ends = |stop: &'a String| {
        text.match_indices(stop.as_str())
            .map(move |(start, stop)| (start + stop.len(), start, stop))
    };
    match stops.iter().flat_map(ends).min() {
        Some((_, start, stop)) => (&text[..start], Some(stop)),
        None => (text, None),
    }
}

#[test]
fn test_random_texts_and_stops_agree_with_a_plain_search() {
    const PIECES: [&str; 8] = ["ab", "a", "🙂", " quick", "é", "日本語", "b", "\n"];
    let mut random = 0x1234_5678_9abc_def1_u64;
    let mut below = move |limit: usize| {
        // xorshift64 (Marsaglia 2003).
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % limit as u64) as usize
    };
    for case in 0..150 {
        let text: String = (0..below(20)).map(|_| PIECES[below(PIECES.len())]).collect();
        let chars: Vec<char> = text.chars().chain("ab".chars()).collect();
        let stops: Vec<String> = (0..1 + below(3))
            .map(|_| {
                let start = below(chars.len());
                let len = 1 + below(4).min(chars.len() - start - 1);
                chars[start..start + len].iter().collect()
            })
            .collect();
        let bench = Bench::auto(says(&text));
        let choice = answer(&bench, json!({ "stop": stops }));
        let (want, stop) = cut(&text, &stops);
        assert_eq!(choice["text"], want, "case {case}: {text:?} {stops:?}");
        assert_eq!(choice["stop_reason"], json!(stop), "case {case}: {text:?} {stops:?}");
    }
}
