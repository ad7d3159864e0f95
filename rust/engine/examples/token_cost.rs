//! CPU time of each thread per generated token on the sim device: scheduling, detokenising, frames,
//! and where they go: events that are drained (at infinite speed), or TCP sockets (four times faster
//! than one H200, so that a reader keeps up).
//!
//! `cargo run --release -p ingle-engine --example token_cost -- MODEL [STREAMS] [TOKENS]`
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};

use ingle_engine::{ClientSocket, Engine, Payload};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;

fn main() {
    let mut args = std::env::args().skip(1);
    let model = args.next().expect("MODEL is missing");
    let streams: u64 = args.next().map_or(200, |text| text.parse().unwrap());
    let tokens: u64 = args.next().map_or(2000, |text| text.parse().unwrap());
    for sockets in [false, true] {
        let before = threads();
        let mut readers = Vec::new();
        let steps = run(&model, streams, tokens, sockets, &mut readers);
        let name = if sockets { "sockets" } else { "events" };
        println!("{name}: {streams} streams x {tokens} tokens, {steps} steps");
        for (thread, micros) in threads() {
            let micros = micros - before.get(&thread).copied().unwrap_or(0);
            let per_token = micros as f64 / (streams * tokens) as f64;
            println!("  {thread:<16} {per_token:.3} us a token");
        }
    }
}

/// Runs all streams to their end; gives the number of steps. The engine is kept alive until the
/// threads' times have been read by leaking it into `keep`.
fn run(
    model: &str,
    streams: u64,
    tokens: u64,
    sockets: bool,
    readers: &mut Vec<std::thread::JoinHandle<()>>,
) -> u64 {
    let options = json!({
        "model": model, "device": "sim", "max_num_seqs": streams,
        "sim_speed": if sockets { json!(4) } else { json!("inf") },
    });
    let engine = Engine::start(options.to_string().as_bytes()).unwrap();
    let engine: &'static Engine = Box::leak(Box::new(engine));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut theirs = Vec::new();
    for number in 0..streams {
        let request = json!({
            "prompts": [{ "token_ids": [number + 10, 11, 12] }],
            "max_tokens": tokens,
            "ignore_eos": true,
            "output": {
                "format": "chat", "stream": true, "chunked": true, "model": "demo",
                "response_id": "chatcmpl-0123456789abcdef0123456789abcdef", "created": 1_795_967_925
            },
        });
        let key = engine.submit(request.to_string().as_bytes()).unwrap();
        if sockets {
            theirs.push(TcpStream::connect(address).unwrap());
            let ours = listener.accept().unwrap().0;
            ours.set_nodelay(true).unwrap();
            let (fd, head) = (ours.into(), Vec::new());
            let socket = ClientSocket { fd, frames_seen: 0, head };
            engine.attach_socket(key, socket);
        }
    }
    if sockets {
        readers.push(
            std::thread::Builder::new().name("reader".into()).spawn(|| read(theirs)).unwrap(),
        );
    }
    let mut ended = 0;
    while ended < streams {
        let fd = engine.event_fd();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
        for event in engine.drain() {
            ended += u64::from(!matches!(event.payload, Payload::Frame(_)));
        }
    }
    for line in engine.metrics(false).lines().filter(|line| line.starts_with("ingle:frames")) {
        println!("  {line}");
    }
    let health: serde_json::Value = serde_json::from_slice(&engine.health()).unwrap();
    health["steps"].as_u64().unwrap()
}

/// Reads all sockets to their end, the oldest first in turn.
fn read(mut sockets: Vec<TcpStream>) {
    let mut buffer = vec![0; 1 << 16];
    while !sockets.is_empty() {
        sockets.retain_mut(|socket| socket.read(&mut buffer).unwrap() > 0);
    }
}

/// CPU microseconds of each thread of this process, by name.
fn threads() -> BTreeMap<String, u64> {
    let mut times = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let name = std::fs::read_to_string(path.join("comm")).unwrap().trim().to_owned();
        // Nanoseconds on the CPU, then time waiting for one (proc(5), schedstat).
        let stat = std::fs::read_to_string(path.join("schedstat")).unwrap();
        let nanos: u64 = stat.split(' ').next().unwrap().parse().unwrap();
        *times.entry(name).or_insert(0) += nanos / 1000;
    }
    times
}
