//! Traces: what a request reports at its end, and where its id is shown.

use ingle_core::TokenId;
use serde_json::{Value, json};

use super::harness::Bench;
use crate::error::EngineError;
use crate::outbox::Payload;

const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn request(stream: bool, trace: Value) -> Value {
    json!({
        "prompts": [{ "token_ids": [5, 6, 7, 8, 9] }],
        "n": 2,
        "max_tokens": 3,
        "ignore_eos": true,
        "trace": trace,
        "output": { "format": "completion", "stream": stream },
    })
}

fn bench() -> Bench {
    Bench::auto(Box::new(|_, index| TokenId(40 + index as u32)))
}

#[test]
fn test_a_traced_request_reports_its_times_once_before_its_end() {
    let bench = bench();
    for stream in [false, true] {
        let key = bench.submit(&request(stream, json!({ "id": ID, "report": true }))).unwrap();
        let mut payloads = Vec::new();
        while !matches!(payloads.last(), Some(Payload::Body(_) | Payload::StreamEnd)) {
            payloads.extend(bench.collect(&[key]).into_iter().map(|event| event.payload));
        }
        let reports: Vec<_> =
            payloads.iter().filter(|payload| matches!(payload, Payload::Times(_))).collect();
        let [Payload::Times(times)] = reports[..] else { panic!("{payloads:?}") };
        assert_eq!(times.finish_reasons, ["length", "length"]);
        assert_eq!((times.prompt_tokens, times.completion_tokens), (5, 6));
        let first = times.first_token_us.unwrap();
        assert!(times.scheduled_us <= first && first <= times.end_us, "{times:?}");
    }
}

#[test]
fn test_a_request_that_asks_for_no_report_gets_none() {
    let bench = bench();
    for trace in [Value::Null, json!({ "id": ID })] {
        let key = bench.submit(&request(false, trace)).unwrap();
        let events = bench.collect(&[key]);
        assert!(matches!(events[..], [crate::Event { payload: Payload::Body(_), .. }]));
    }
}

#[test]
fn test_the_trace_of_a_request_is_the_exemplar_of_its_observations() {
    let bench = bench();
    bench.body(&request(false, Value::Null));
    assert!(!bench.engine.metrics(true).contains("trace_id"));
    bench.body(&request(false, json!({ "id": ID })));
    assert!(!bench.engine.metrics(false).contains("trace_id"));
    let shown = bench.engine.metrics(true);
    let exemplar = format!(" # {{trace_id=\"{ID}\"}} ");
    let named: std::collections::BTreeSet<&str> = shown
        .lines()
        .filter(|line| line.contains(&exemplar))
        .filter_map(|line| line.split_once("_bucket{").map(|(name, _)| name))
        .collect();
    let of =
        |names: &[&str]| names.iter().all(|name| named.contains(format!("vllm:{name}").as_str()));
    assert!(of(&["time_to_first_token_seconds", "e2e_request_latency_seconds"]), "{named:?}");
    assert!(of(&["request_queue_time_seconds", "request_prompt_tokens"]), "{named:?}");
    assert!(!named.contains("vllm:inter_token_latency_seconds"), "too many to be worth it");
}

#[test]
fn test_a_trace_id_that_is_none_is_refused_by_name() {
    let refused = bench().submit(&request(false, json!({ "id": "x" }))).unwrap_err();
    let EngineError::Refused { message, param, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(param.as_deref(), Some("trace"));
    assert!(message.starts_with("trace.id: must be 32 hex digits"), "{message}");
}
