//! Requests as the front end hands them on, and the bytes that clients read.

use std::path::Path;

use ingle_engine::{Engine, EngineError, Event, Payload, check_body};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::golden_model;
use crate::cost::Cost;
use crate::driver::{Outcome, Target};

/// A body: checked as every body is, then submitted as a request of the engine.
pub(super) struct Request {
    engine: Engine,
}

impl Request {
    pub(super) fn new(models: &Path) -> Self {
        Self { engine: engine(models) }
    }
}

impl Target for Request {
    fn name(&self) -> &'static str {
        "request"
    }

    fn is_json(&self) -> bool {
        true
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "\"n\":",
            "\"max_tokens\":",
            "\"stop\":[\"",
            "\"sampling\":{",
            "\"temperature\":",
            "\"logit_bias\":{\"1\":",
            "\"token_ids\":[",
            "\"text\":\"",
            "\"chat\":{\"messages\":[",
            "\"role\":\"user\"",
            "\"content\":",
            "\"bad_words\":[\"",
            "\"grammar\":{\"kind\":\"regex\"",
            "\"field\":\"guided_regex\"",
            "\"echo\":true",
            "\"stream\":true",
            "\"logprobs\":",
            "\"priority\":",
            "\"stop_token_ids\":[",
            "null",
            "true",
            "1e400",
            "-0",
            "\\ud800",
            "[[[[",
        ]
    }

    fn limit(&self) -> Cost {
        // A valid request may generate a whole context, 64 choices of it.
        Cost { cpu: std::time::Duration::from_secs(2), peak_bytes: 256 << 20 }
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let checked = check_body(input);
        if serde_json::from_slice::<Value>(input).is_err() {
            assert!(checked.is_err(), "a body passes that is not JSON");
        }
        let key = match self.engine.submit(input) {
            Ok(key) => key,
            Err(EngineError::Refused { message, .. } | EngineError::Overloaded { message, .. }) => {
                assert!(message.len() < 4000, "{message}");
                return Outcome::refused(&message);
            }
            Err(other) => panic!("{other:?} from a request"),
        };
        if input.len().is_multiple_of(4) {
            self.engine.abort(key);
            return Outcome::of("aborted");
        }
        let events = events(&self.engine, key);
        let kinds: Vec<_> = events.iter().map(std::mem::discriminant).take(3).collect();
        Outcome::of((checked.is_ok(), kinds, events.len().checked_ilog2()))
    }
}

/// An answer's text: a client that reads the frames gets exactly it.
pub(super) struct Framing {
    engine: Engine,
}

impl Framing {
    pub(super) fn new(models: &Path) -> Self {
        Self { engine: engine(models) }
    }
}

impl Target for Framing {
    fn name(&self) -> &'static str {
        "framing"
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "data: ",
            "\n\n",
            "\r\n",
            "[DONE]",
            "\"",
            "\\",
            "\u{2028}",
            "🙂",
            "\0",
            "0\r\n\r\n",
            "}]}",
        ]
    }

    fn max_len(&self) -> usize {
        120
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let Some((&form, text)) = input.split_first() else { return Outcome::of("empty") };
        let (chat, chunked, usage) = (form & 1 != 0, form & 2 != 0, form & 4 != 0);
        let text = String::from_utf8_lossy(text).into_owned();
        // The only answer that fits the grammar is the text.
        let request = json!({
            "prompts": [{"text": "x"}],
            "max_tokens": 800,
            "grammar": {"kind": "choice", "field": "guided_choice", "choices": [text]},
            "output": {
                "format": if chat { "chat" } else { "completion" }, "stream": true, "chunked": chunked,
                "response_id": "r", "created": 1, "include_usage": usage,
                "continuous_usage_stats": usage && form & 8 != 0,
            },
        });
        let key = match self.engine.submit(request.to_string().as_bytes()) {
            Ok(key) => key,
            Err(EngineError::Refused { message, .. }) => return Outcome::refused(&message),
            Err(other) => panic!("{other:?}"),
        };
        let mut bytes = Vec::new();
        for event in events(&self.engine, key) {
            match event {
                Payload::Frame(frame) => bytes.extend(frame),
                Payload::StreamEnd => {}
                other => panic!("a stream has {other:?}"),
            }
        }
        let body = if chunked { unchunked(&bytes) } else { bytes };
        let (answer, num_usages) = read(&body, chat);
        assert_eq!(answer, text, "the client reads another text");
        assert_eq!(num_usages > 0, usage, "usage events");
        Outcome::of((form & 15, text.chars().filter(|c| !c.is_alphanumeric()).collect::<String>()))
    }
}

fn engine(models: &Path) -> Engine {
    let options = json!({
        "model": golden_model(models), "device": "sim", "sim_speed": "inf", "max_num_seqs": 16,
    });
    Engine::start(options.to_string().as_bytes()).unwrap()
}

/// Events of `key` up to its end.
fn events(engine: &Engine, key: u64) -> Vec<Payload> {
    let mut found = Vec::new();
    loop {
        let fd = engine.event_fd();
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)).unwrap();
        assert!(ready > 0, "request {key} has no end");
        for Event { key: other, payload } in engine.drain() {
            if other != key {
                continue;
            }
            let is_part = matches!(payload, Payload::Frame(_) | Payload::Delta(_));
            found.push(payload);
            if !is_part {
                return found;
            }
        }
    }
}

/// The body of a chunked HTTP message (RFC 9112, 7.1), read strictly.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n").expect("a chunk has a size");
        let size = std::str::from_utf8(&bytes[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let data = &bytes[end + 2..];
        assert_eq!(&data[size..size + 2], b"\r\n", "a chunk ends with its size");
        body.extend_from_slice(&data[..size]);
        bytes = &data[size + 2..];
        if size == 0 {
            assert!(bytes.is_empty(), "bytes behind the last chunk");
            return body;
        }
    }
}

/// The text of an event stream and how many events had usage.
fn read(body: &[u8], chat: bool) -> (String, usize) {
    let body = std::str::from_utf8(body).unwrap();
    let body = body.strip_suffix("data: [DONE]\n\n").expect("[DONE] is the last event");
    let mut text = String::new();
    let mut num_usages = 0;
    for event in body.split_terminator("\n\n") {
        let json = event.strip_prefix("data: ").expect("an event is one line of data");
        assert!(!json.contains(['\n', '\r']), "an event of two lines");
        let event: Value = serde_json::from_str(json).unwrap();
        num_usages += usize::from(event["usage"].is_object());
        let Some(choice) = event["choices"].get(0) else { continue };
        let part = if chat { &choice["delta"]["content"] } else { &choice["text"] };
        text.push_str(part.as_str().unwrap_or_default());
    }
    (text, num_usages)
}
