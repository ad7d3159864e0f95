//! The memory of whole answers: how much text one may have, and all together. The limits are smaller in tests.

use std::sync::Arc;

use ingle_core::{CoreEvent, Micros, Scheduler, SchedulerConfig, TenantId, TokenId, TokenList};
use ingle_text::Effort;
use serde_json::{Value, json};

use super::harness::{Bench, SHAPE, says};
use crate::answer_room::MAX_ANSWER_BYTES;
use crate::commit::Committer;
use crate::outbox::Payload;
use crate::prepare::prepare;
use crate::submission::request_id;

/// Running requests whose tokens the test chooses.
struct Answers {
    bench: Bench,
    committer: Committer,
    scheduler: Scheduler,
}

impl Answers {
    fn new() -> Self {
        let bench = Bench::manual(says("x"));
        let committer = Committer::new(Arc::clone(&bench.engine.engines[0]));
        let scheduler = Scheduler::new(SchedulerConfig {
            shape: SHAPE,
            max_model_len: 8,
            max_queue: 1,
            weight_tokens: 1,
            enable_prefix_caching: false,
            whole_prompts: false,
            cache_secret: 0,
        });
        Self { bench, committer, scheduler }
    }

    fn begin(&mut self, key: u64, n: u32, stream: bool) {
        let request = json!({
            "prompts": [{ "token_ids": [5, 6] }],
            "n": n,
            "max_tokens": 5,
            "output": { "format": "completion", "stream": stream, "chunked": stream },
        });
        let document = serde_json::from_value(request).unwrap();
        let served = &self.bench.engine.engines[0].served;
        let prepared =
            prepare(&document, served, key, TenantId(0), Effort::Full, Micros(0)).unwrap();
        self.committer.insert(prepared.stream);
    }

    /// Commits tokens with so many bytes of text, and returns the keys and codes of the answers that this ended.
    fn say(&mut self, key: u64, choice: usize, bytes: u64) -> Vec<(u64, Value)> {
        let word = self.bench.ids(" fire");
        let count = bytes as usize / 5 * word.len();
        let tokens: Vec<TokenId> = word.into_iter().cycle().take(count).collect();
        let log_probs = Vec::new();
        let id = request_id(key, choice);
        let mut events = vec![CoreEvent::Tokens { id, tokens: TokenList::Many(tokens), log_probs }];
        self.committer.commit(&mut events, &mut self.scheduler);
        self.committer.deliver(&mut self.scheduler, &mut events);
        let ended = |event: crate::outbox::Event| match event.payload {
            Payload::Error(error) => {
                let error: Value = serde_json::from_slice(&error).unwrap();
                Some((event.key, json!([error["error"]["code"], error["status"]])))
            }
            _ => None,
        };
        self.bench.engine.drain().into_iter().filter_map(ended).collect()
    }
}

#[test]
fn test_a_whole_answer_that_grows_too_long_ends_alone() {
    let mut answers = Answers::new();
    answers.begin(1, 2, false);
    answers.begin(2, 1, false);
    // The choices count together.
    let half = MAX_ANSWER_BYTES / 2;
    assert_eq!(answers.say(1, 0, half), []);
    assert_eq!(answers.say(2, 0, 100), []);
    assert_eq!(answers.say(1, 1, half + 10), [(1, json!(["answer_too_long", 500]))]);
    // What comes late for it is dropped; others go on.
    assert_eq!(answers.say(1, 0, 100), []);
    assert_eq!(answers.committer.streams.keys().collect::<Vec<_>>(), [&2]);
}

#[test]
fn test_where_whole_answers_fill_the_memory_the_longest_ends() {
    let mut answers = Answers::new();
    let most = MAX_ANSWER_BYTES;
    for key in 1..=4 {
        answers.begin(key, 1, false);
        let length = most - if key == 2 { 0 } else { 100 } - 5;
        assert_eq!(answers.say(key, 0, length), []);
    }
    answers.begin(5, 1, false);
    assert_eq!(answers.say(5, 0, 200), []);
    assert_eq!(answers.say(5, 0, 200), [(2, json!(["overloaded", 503]))]);
    // There is room again, and a request that is given up leaves room too.
    assert_eq!(answers.say(5, 0, most / 2), []);
    answers.committer.abort(1, &mut answers.scheduler, &mut Vec::new());
    answers.begin(6, 1, false);
    assert_eq!(answers.say(6, 0, most - 100), []);
}

#[test]
fn test_streams_hold_no_text_and_may_be_as_long_as_they_like() {
    let mut answers = Answers::new();
    answers.begin(1, 1, true);
    for _ in 0..9 {
        assert_eq!(answers.say(1, 0, MAX_ANSWER_BYTES - 5), []);
    }
}

#[test]
fn test_echoed_prompts_count_before_anything_is_computed() {
    let bench = Bench::auto(says("x"));
    // Bytes that are no text: three of the echo for each.
    let lone = bench.ids("\u{10ffff}")[0].0;
    let document = |n: usize| {
        json!({
            "prompts": vec![json!({ "token_ids": vec![lone; 199] }); n],
            "max_tokens": 0,
            "output": { "format": "completion", "echo": true },
        })
    };
    bench.body(&document(1));
    let prepared = |n| {
        let document = serde_json::from_value(document(n)).unwrap();
        let served = &bench.engine.engines[0].served;
        prepare(&document, served, 9, TenantId(0), Effort::Full, Micros(0))
    };
    let within = prepared(6).err().map(|error| error.to_string());
    assert_eq!(within, None);
    let error = prepared(7).err().unwrap().to_string();
    assert!(error.starts_with("echo: the choices would begin with"), "{error}");
}
