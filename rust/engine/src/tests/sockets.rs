//! Frames sent by the engine itself: order, short writes, clients that are slow or gone.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ingle_core::{Micros, Scheduler, SchedulerConfig, TenantId, TokenId};
use ingle_text::Effort;
use rustix::net::sockopt::set_socket_send_buffer_size;
use serde_json::{Value, json};

use super::harness::{Bench, SHAPE, loaded, says};
use crate::commit::Committer;
use crate::engine_thread::EngineThread;
use crate::inbox::Message;
use crate::load::LoadedEngine;
use crate::outbox::{Event, Payload};
use crate::prepare::prepare;
use crate::stream::ClientSocket;
use crate::tenant_load::TenantLoad;

fn request(max_tokens: u32) -> Value {
    json!({
        "prompts": [{ "token_ids": [5, 6] }],
        "max_tokens": max_tokens,
        "output": {
            "format": "completion", "stream": true, "chunked": true, "include_usage": true
        },
    })
}

fn lent(socket: UnixStream, head: &[u8]) -> ClientSocket {
    ClientSocket { fd: socket.into(), frames_seen: 0, head: head.to_vec() }
}

/// Steps until `key` ends; its frames that came as events.
fn drive(bench: &Bench, key: u64) -> (Vec<u8>, Payload) {
    let mut frames = Vec::new();
    loop {
        for event in bench.advance() {
            match event {
                Event { key: other, .. } if other != key => panic!("{event:?}"),
                Event { payload: Payload::Frame(frame), .. } => frames.extend(frame),
                Event { payload, .. } => return (frames, payload),
            }
        }
    }
}

#[test]
fn test_an_attached_socket_gets_the_same_bytes() {
    let bench = Bench::lockstep(says("one two three four"));
    let key = bench.submit(&request(50)).unwrap();
    let (want, end) = drive(&bench, key);
    assert_eq!(end, Payload::StreamEnd);

    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let key = bench.submit(&request(50)).unwrap();
    bench.engine.attach_socket(key, lent(ours, b""));
    let (frames, end) = drive(&bench, key);
    assert_eq!((frames, end), (Vec::new(), Payload::StreamEnd));
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    // `read_to_end` came back: the engine keeps no copy of the socket after the end.
    assert_eq!(String::from_utf8(got).unwrap(), String::from_utf8(want).unwrap());
}

#[test]
fn test_a_socket_that_fills_up_leaves_the_rest_to_the_event_loop_in_order() {
    let bench = Bench::lockstep(Box::new(|_, index| TokenId(40 + index as u32 % 50)));
    let key = bench.submit(&request(180)).unwrap();
    let (want, _) = drive(&bench, key);

    let (ours, mut theirs) = UnixStream::pair().unwrap();
    set_socket_send_buffer_size(&ours, 4096).unwrap();
    let key = bench.submit(&request(180)).unwrap();
    bench.engine.attach_socket(key, lent(ours, b""));
    let (frames, end) = drive(&bench, key);
    assert_eq!(end, Payload::StreamEnd);
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    assert!(!got.is_empty() && !frames.is_empty(), "{} {}", got.len(), frames.len());
    got.extend(frames);
    assert_eq!(String::from_utf8(got).unwrap(), String::from_utf8(want).unwrap());
}

#[test]
fn test_the_head_goes_out_with_the_first_frame() {
    let bench = Bench::lockstep(says("one two three four"));
    let key = bench.submit(&request(50)).unwrap();
    let (frames, _) = drive(&bench, key);
    let want = [b"HEAD\r\n\r\n".as_slice(), &frames].concat();

    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let key = bench.submit(&request(50)).unwrap();
    bench.engine.attach_socket(key, lent(ours, b"HEAD\r\n\r\n"));
    let (frames, end) = drive(&bench, key);
    assert_eq!((frames, end), (Vec::new(), Payload::StreamEnd));
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    assert_eq!(String::from_utf8(got).unwrap(), String::from_utf8(want).unwrap());
}

#[test]
fn test_what_a_full_socket_leaves_of_head_and_frame_says_so() {
    let bench = Bench::lockstep(says("one two three four"));
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    set_socket_send_buffer_size(&ours, 4096).unwrap();
    let key = bench.submit(&request(50)).unwrap();
    bench.engine.attach_socket(key, lent(ours, &[b'h'; 1 << 20]));
    let first = loop {
        if let Some(event) = bench.advance().into_iter().next() {
            break event;
        }
    };
    let Payload::Headed(rest) = first.payload else { panic!("{first:?}") };
    let (frames, end) = drive(&bench, key);
    assert_eq!(end, Payload::StreamEnd);
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    let sent = got.len();
    got.extend_from_slice(&rest);
    assert!(sent < 1 << 20 && got[..1 << 20].iter().all(|&byte| byte == b'h'), "{sent}");
    assert!(got[1 << 20..].ends_with(b"\r\n") && !frames.is_empty());
}

#[test]
fn test_attaching_late_never_overtakes_frames_that_the_event_loop_holds() {
    let bench = Bench::lockstep(says("one two three four"));
    let key = bench.submit(&request(50)).unwrap();
    let first = loop {
        if let Some(event) = bench.advance().into_iter().next() {
            break event;
        }
    };
    assert!(matches!(first.payload, Payload::Frame(_)));
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    // One frame has been handed out: who claims to have seen none is refused.
    bench.engine.attach_socket(key, lent(ours, b""));
    let (frames, _) = drive(&bench, key);
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"");
    assert!(!frames.is_empty());
}

#[test]
fn test_a_client_that_is_gone_frees_its_blocks_and_harms_nobody() {
    let bench = Bench::lockstep(Box::new(|_, index| TokenId(40 + index as u32 % 50)));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let gone = bench.submit(&request(150)).unwrap();
    bench.engine.attach_socket(gone, lent(ours, b""));
    let other = bench.submit(&request(20)).unwrap();
    for _ in 0..3 {
        bench.driver.step();
    }
    drop(theirs);
    let mut events = Vec::new();
    while !events.iter().any(|e: &Event| e.key == other && e.payload == Payload::StreamEnd) {
        events.extend(bench.advance());
    }
    let of_gone: Vec<&Event> = events.iter().filter(|event| event.key == gone).collect();
    let [Event { payload: Payload::Error(error), .. }] = of_gone[..] else {
        panic!("{of_gone:?}");
    };
    let error: Value = serde_json::from_slice(error).unwrap();
    assert_eq!(error["status"], 499);
    assert_eq!(bench.blocks_used(), 0);
}

#[test]
fn test_a_stream_that_nobody_takes_is_ended() {
    let bench = Bench::lockstep(Box::new(|_, index| TokenId(40 + index as u32 % 50)));
    let mut request = request(190);
    request["output"]["model"] = json!("m".repeat(12_000));
    let key = bench.submit(&request).unwrap();
    // Keeps steps coming after that one has ended.
    let other = json!({
        "prompts": [{ "token_ids": [5] }],
        "max_tokens": 195,
        "output": { "format": "completion" },
    });
    bench.submit(&other).unwrap();
    // 150 events would be 1.8 MB; nobody drains.
    for _ in 0..150 {
        bench.driver.step();
    }
    assert_eq!(bench.engine.front.room.in_system(), 1);
    let events = bench.collect(&[key]);
    let bytes: usize = events
        .iter()
        .map(|event| if let Payload::Frame(frame) = &event.payload { frame.len() } else { 0 })
        .sum();
    // What waits, and the frame that found it to be too much.
    assert!(bytes <= (1 << 20) + 16_000, "{bytes}");
    let Payload::Error(error) = &events.last().unwrap().payload else { panic!("no error") };
    let error: Value = serde_json::from_slice(error).unwrap();
    assert_eq!(error["error"]["code"], "slow_reader");
    assert_eq!(events.last().unwrap().key, key);
}

#[test]
fn test_a_ping_shows_life_only_after_silence() {
    let bench = Bench::lockstep(says("x"));
    let key = bench.submit(&request(5)).unwrap();
    bench.engine.ping(key);
    let (frames, _) = drive(&bench, key);
    let text = String::from_utf8(frames).unwrap();
    assert!(!text.contains("\n:\n\n"), "{text}");
}

#[test]
fn test_a_socket_of_a_request_that_has_ended_is_closed_at_once() {
    let bench = Bench::auto(says("x"));
    let key = bench.submit(&request(5)).unwrap();
    bench.collect(&[key]);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    bench.engine.attach_socket(key, lent(ours, b""));
    // Comes back at once only if nobody keeps a copy.
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
}

#[test]
fn test_a_silent_stream_gets_a_comment_of_its_own() {
    let bench = Bench::manual(says("x"));
    let shared = &bench.engine.engines[0];
    let document = serde_json::from_value(request(5)).unwrap();
    let prepared =
        prepare(&document, &shared.served, 9, TenantId(0), Effort::Full, Micros(0)).unwrap();
    let mut committer = Committer::new(Arc::clone(shared));
    committer.insert(prepared.stream);
    let config = SchedulerConfig {
        shape: SHAPE,
        max_model_len: 8,
        max_queue: 1,
        weight_tokens: 1,
        enable_prefix_caching: false,
        whole_prompts: false,
        cache_secret: 0,
    };
    let mut scheduler = Scheduler::new(config);
    let mut frames = |seconds: u64| {
        committer.now = Micros(seconds * 1_000_000);
        committer.ping(9);
        committer.deliver(&mut scheduler, &mut Vec::new());
        bench.engine.drain()
    };
    assert_eq!(frames(9), []);
    let comment = Event { key: 9, payload: Payload::Frame(b"3\r\n:\n\n\r\n".to_vec()) };
    assert_eq!(frames(10), std::slice::from_ref(&comment));
    assert_eq!(frames(19), []);
    assert_eq!(frames(20), [comment]);
}

#[test]
fn test_a_stream_refused_at_the_end_gets_a_frame_to_put_its_head_before() {
    let (_, mut loaded, _driver) = loaded(says("x"), (true, 1), &json!({}));
    let LoadedEngine { shared, scheduler, executor } = loaded.engines.pop().unwrap();
    let key = 9;
    let thread = EngineThread::new(Arc::clone(&shared), scheduler, executor, None).unwrap();
    let document = serde_json::from_value(request(5)).unwrap();
    let submission =
        prepare(&document, &shared.served, key, TenantId(0), Effort::Full, Micros(0)).unwrap();
    let tenant = Arc::new(TenantLoad::new(TenantId(0)));
    assert!(shared.room.reserve(&tenant, 1));
    shared.enter(1);
    // The engine thread takes both at once.
    assert!(shared.inbox.put(Message::Shutdown).is_ok());
    assert!(shared.inbox.put(Message::Submit(Box::new(submission), tenant)).is_ok());
    thread.run();
    let events = shared.outbox.drain();
    let [Event { payload: Payload::Frame(frame), .. }, Event { payload: Payload::Error(_), .. }] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    let text = String::from_utf8_lossy(frame);
    assert!(text.contains("shutting down") && text.ends_with("[DONE]\n\n\r\n"), "{text}");
    assert_eq!((shared.num_choices(), shared.room.in_system()), (0, 0));
}
