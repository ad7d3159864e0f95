//! Fleets whose figures can be worked out by hand, and what more workers and another seed change.

use serde_json::{Value, json};

use super::plan;

fn planned(changes: Value) -> Result<Value, String> {
    let mut document = json!({
        "arrivals": [[0.0, 1000, 101]],
        "max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 8192,
        "attainment": 0.99, "seed": 1, "workers": 1,
    });
    for (key, value) in changes.as_object().unwrap() {
        document[key] = value.clone();
    }
    let report = plan(document.to_string().as_bytes()).map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&report).unwrap())
}

fn ms(found: &Value, name: &str, quantile: &str) -> f64 {
    found["report"][name][quantile].as_f64().unwrap()
}

/// A request a tenth of a second, on average, of the lengths of a chat.
fn chats(count: u64, gap_s: f64) -> Vec<(f64, u64, u64)> {
    (0..count).map(|k| (k as f64 * gap_s, 300 + k * 7919 % 2000, 50 + k * 104_729 % 400)).collect()
}

#[test]
fn a_request_alone_takes_the_steps_of_the_profile() {
    let found = planned(json!({})).unwrap();
    // 1,000 rows: (1000 x 13.959 + 1.051) GFLOP / 790 TFLOP/s + 131 MB / 4.3 TB/s + 0.4 ms.
    assert!((ms(&found, "ttft_ms", "p50") - 18.10).abs() < 0.05, "{found}");
    // One row: 15.009 GB and about 1,050 tokens of KV at 4.3 TB/s, and 0.4 ms.
    assert!((ms(&found, "tpot_ms", "p50") - 3.92).abs() < 0.01, "{found}");
    assert_eq!(found["report"]["steps"], 101, "{found}");
}

#[test]
fn more_workers_serve_sooner_and_the_smallest_fleet_is_found() {
    let arrivals = chats(600, 0.02);
    let of = |workers: u64| planned(json!({ "arrivals": arrivals, "workers": workers })).unwrap();
    let (two, four) = (of(2), of(4));
    assert!(ms(&four, "ttft_ms", "p99") < ms(&two, "ttft_ms", "p99"), "{two} {four}");
    let slo = json!({
        "arrivals": arrivals, "workers": null, "slo_ttft_ms": 300.0, "slo_tpot_ms": 12.0,
    });
    let found = planned(slo.clone()).unwrap();
    let workers = found["workers"].as_u64().unwrap();
    assert!(found["report"]["attained"].as_f64().unwrap() >= 0.99, "{found}");
    let mut fewer = slo;
    fewer["workers"] = json!(workers - 1);
    assert!(workers > 1, "{found}");
    let less = planned(fewer).unwrap();
    assert!(less["report"]["attained"].as_f64().unwrap() < 0.99, "{less}");
}

#[test]
fn groups_of_workers_serve_every_request_once() {
    let arrivals = chats(400, 0.01);
    let found = planned(json!({ "arrivals": arrivals, "workers": 7, "groups": 3 })).unwrap();
    assert_eq!((&found["report"]["requests"], &found["groups"]), (&json!(400), &json!(3)));
    let same = planned(json!({ "arrivals": arrivals, "workers": 7, "groups": 3 })).unwrap();
    assert_eq!(found, same, "a seed repeats its run");
}

#[test]
fn what_cannot_be_planned_is_said() {
    let impossible = json!({ "workers": null, "slo_ttft_ms": 1.0 });
    assert!(planned(impossible).unwrap_err().contains("no fleet meets the objective"));
    assert!(planned(json!({ "arrivals": [] })).unwrap_err().contains("no requests"));
    assert!(planned(json!({ "profile": "/nowhere.json" })).unwrap_err().contains("/nowhere.json"));
    let long = planned(json!({ "arrivals": [[0.0, 9000, 500]] })).unwrap();
    assert_eq!(long["report"]["cut_requests"], 1);
}
