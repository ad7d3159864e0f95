//! A panic while a request is prepared ends that request alone, and gives back what it held.

use serde_json::{Value, json};

use super::harness::{Bench, MAX_QUEUE, SHAPE, says};
use crate::error::EngineError;
use crate::guard::{ARMED, INTERNAL, log_panics_without_text};
use crate::outbox::Payload;

fn request() -> Value {
    json!({
        "prompts": [{ "text": "a secret prompt" }],
        "n": 2,
        "max_tokens": 4,
        "output": { "format": "completion" },
    })
}

fn health(bench: &Bench) -> Value {
    serde_json::from_slice(&bench.engine.health()).unwrap()
}

/// Calls `work` with a mistake at `place`.
fn with_fault<T>(place: &'static str, work: impl FnOnce() -> T) -> T {
    ARMED.set(Some(place));
    let result = work();
    ARMED.set(None);
    result
}

#[test]
fn test_a_panic_while_a_request_is_prepared_gives_its_queue_slots_back() {
    let bench = Bench::manual(says("x"));
    let running = bench.submit(&request()).unwrap();
    let capacity = SHAPE.max_num_seqs + MAX_QUEUE;
    for place in ["tokenise", "grammar", "queue"] {
        for _ in 0..=capacity {
            let failed = with_fault(place, || bench.submit(&request()));
            assert_eq!(failed, Err(EngineError::Failed(INTERNAL.to_owned())), "{place}");
        }
        let health = health(&bench);
        assert_eq!((&health["in_system"], &health["status"]), (&json!(2), &json!("ok")));
    }
    // The whole queue is there for the next ones, and the request that ran is answered.
    let others: Vec<u64> =
        (0..capacity / 2 - 1).map(|_| bench.submit(&request()).unwrap()).collect();
    assert!(matches!(bench.submit(&request()), Err(EngineError::Overloaded { .. })));
    let mut bodies = 0;
    while bodies <= others.len() {
        let events = bench.advance();
        assert!(events.iter().all(|event| matches!(event.payload, Payload::Body(_))), "{events:?}");
        bodies += events.len();
    }
    assert!(running < others[0]);
    assert_eq!(health(&bench)["in_system"], 0);
}

#[test]
fn test_a_panic_leaves_its_tenant_no_share_of_the_queue() {
    let bench = Bench::manual(says("x"));
    let mut hog = request();
    hog["tenant"] = json!("hog");
    let failed = with_fault("queue", || bench.submit(&hog));
    assert!(matches!(failed, Err(EngineError::Failed(_))));
    // Tenants that have something in the system share the queue.
    assert_eq!(bench.engine.front.room.num_tenants(), 0);
}

#[test]
fn test_a_panic_while_text_is_tokenised_is_an_error_of_that_call() {
    let bench = Bench::manual(says("x"));
    let prompt = br#"{"text": "a secret prompt"}"#;
    let failed = with_fault("tokenize", || bench.engine.tokenize(prompt));
    assert_eq!(failed, Err(EngineError::Failed(INTERNAL.to_owned())));
    assert!(!bench.engine.tokenize(prompt).unwrap().is_empty());
}

#[test]
fn test_a_panic_while_a_template_renders_ends_that_chat_alone() {
    let bench = Bench::manual(says("x"));
    let chat = json!({ "messages": [{ "role": "user", "content": "a secret prompt" }] });
    let request = json!({
        "prompts": [{ "chat": chat }],
        "max_tokens": 4,
        "output": { "format": "completion" },
    });
    let prompt = json!({ "chat": chat }).to_string();
    let running = bench.submit(&request).unwrap();
    for _ in 0..=SHAPE.max_num_seqs + MAX_QUEUE {
        let failed = with_fault("template", || bench.submit(&request));
        assert_eq!(failed, Err(EngineError::Failed(INTERNAL.to_owned())));
        let failed = with_fault("template", || bench.engine.tokenize(prompt.as_bytes()));
        assert_eq!(failed, Err(EngineError::Failed(INTERNAL.to_owned())));
    }
    assert_eq!(health(&bench)["in_system"], 1);
    assert!(bench.submit(&request).unwrap() > running);
    assert!(!bench.engine.tokenize(prompt.as_bytes()).unwrap().is_empty());
}

#[test]
fn test_a_panic_is_logged_without_its_text() {
    const NAME: &str = "tests::guards::test_a_panic_is_logged_without_its_text";
    if std::env::var_os(CHILD).is_some() {
        log_panics_without_text();
        let failed = with_fault("tokenize", || {
            let bench = Bench::manual(says("x"));
            bench.engine.tokenize(br#"{"text": "x"}"#)
        });
        assert!(failed.is_err());
        return;
    }
    // The hook is the process's: a process of its own.
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{log}");
    assert!(
        log.contains("ERROR internal error: a panic at ") && log.contains("guard.rs:"),
        "{log}"
    );
    assert!(!log.contains("secret"), "{log}");
}

const CHILD: &str = "INGLE_TEST_PANIC_CHILD";
