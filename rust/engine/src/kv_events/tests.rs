//! Readers of the events, each with an index of its own as a router has it, against the truth of a cache.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ingle_core::{CachedBlock, Parent, PrefixWatcher, TokenId};
use ingle_zmtp::encode_message;
use std::io::{Read, Write};

use super::index::{Event, Index};
use super::log::{Changes, EventLog, MAX_CHANGES, Wake};
use super::{Encoding, KvEventOptions, KvEvents, SaltTable, batch};

const BLOCK_SIZE: u32 = 2;
const SALT: u64 = 77;

fn log() -> EventLog {
    EventLog::new(Arc::new(Wake::new().unwrap()))
}

fn salts() -> SaltTable {
    let salts = SaltTable::default();
    salts.note(SALT, None);
    salts
}

fn add(log: &EventLog, serial: u64, parent: Parent) {
    let tokens = [TokenId(serial as u32), TokenId(7)];
    log.added(&CachedBlock { hash: hash(serial), serial, parent, tokens: &tokens });
}

fn hash(serial: u64) -> u128 {
    u128::from(serial) << 64 | u128::from(serial * 1000)
}

fn events(log: &EventLog, index: &mut Index, salts: &SaltTable) -> Vec<Event> {
    let mut changes = Changes::default();
    log.take(&mut changes);
    index.apply(&changes, salts)
}

/// What a router does with the events: blocks by hash.
fn follow(events: &[Event], known: &mut BTreeSet<u64>) {
    for event in events {
        match event {
            Event::Stored { hashes, parent, tokens, .. } => {
                assert!(parent.is_none_or(|parent| known.contains(&parent)), "{event:?}");
                assert_eq!(tokens.len(), hashes.len() * BLOCK_SIZE as usize);
                for (hash, tokens) in hashes.iter().zip(tokens.chunks(BLOCK_SIZE as usize)) {
                    assert!(known.insert(*hash), "{hash} is stored twice");
                    assert_eq!(tokens, [(hash / 1000) as u32, 7], "tokens of {hash}");
                }
            }
            Event::Removed(hashes) => hashes.iter().for_each(|hash| {
                assert!(known.remove(hash), "{hash} is removed and was not there");
            }),
            Event::Cleared => known.clear(),
        }
    }
}

#[test]
fn a_reader_knows_exactly_the_blocks_that_can_be_reached() {
    let (log, salts, mut index) = (log(), salts(), Index::new(BLOCK_SIZE));
    // Parents by serial, of every block that the cache has.
    let mut cache: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    let (mut known, mut serial, mut seed) = (BTreeSet::new(), 0, 5_u64);
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below.max(1)
    };
    let mut num_stored = 0;
    while num_stored < 10_000 {
        for _ in 0..random(30) {
            let serials: Vec<u64> = cache.keys().copied().collect();
            match random(100) {
                0 => {
                    log.cleared();
                    cache.clear();
                }
                1..40 if !serials.is_empty() => {
                    let serial = serials[random(serials.len())];
                    cache.remove(&serial);
                    log.removed(hash(serial), serial);
                }
                _ => {
                    serial += 1;
                    // Also below blocks that are gone or out of reach, as running requests add them.
                    let parent = if random(3) == 0 { None } else { serials.last().copied() };
                    let parent = if random(20) == 0 {
                        Some(1 + random(serial as usize) as u64)
                    } else {
                        parent
                    };
                    let parent = parent.filter(|&parent| parent < serial);
                    add(&log, serial, parent.map_or(Parent::Salt(SALT), Parent::Entry));
                    cache.insert(serial, parent);
                    num_stored += 1;
                }
            }
        }
        follow(&events(&log, &mut index, &salts), &mut known);
        // Serials ascend from parent to child.
        let mut reached = BTreeSet::new();
        for (&serial, parent) in &cache {
            if parent.is_none_or(|parent| reached.contains(&parent)) {
                reached.insert(serial);
            }
        }
        // A block may come below a parent that is out of reach and stays so although that parent's own
        // ancestors were never announced; its serial tells it apart.
        let hashes: BTreeSet<u64> = reached.iter().map(|serial| serial * 1000).collect();
        assert_eq!(known, hashes, "after {num_stored} blocks");
        assert_eq!(index.hashes(), hashes.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn private_blocks_and_those_of_forgotten_salts_are_not_published() {
    let (log, salts, mut index) = (log(), salts(), Index::new(BLOCK_SIZE));
    salts.note(5, Some("s"));
    add(&log, 1, Parent::Leader(ingle_core::RequestId(3)));
    add(&log, 2, Parent::Salt(4));
    add(&log, 3, Parent::Entry(2));
    add(&log, 4, Parent::Salt(5));
    add(&log, 5, Parent::Entry(4));
    let stored = Event::Stored {
        hashes: vec![4000, 5000],
        parent: None,
        tokens: vec![4, 7, 5, 7],
        salt: Some("s".into()),
    };
    assert_eq!(events(&log, &mut index, &salts), [stored]);
}

#[test]
fn a_publisher_that_falls_far_behind_starts_anew() {
    let (log, salts, mut index) = (log(), salts(), Index::new(BLOCK_SIZE));
    add(&log, 1, Parent::Salt(SALT));
    let mut known = BTreeSet::new();
    follow(&events(&log, &mut index, &salts), &mut known);
    (2..MAX_CHANGES as u64 + 2).for_each(|serial| add(&log, serial, Parent::Entry(serial - 1)));
    assert_eq!(events(&log, &mut index, &salts).len(), 1, "one chain");
    let log = self::log();
    (2..MAX_CHANGES as u64 + 3).for_each(|serial| add(&log, serial, Parent::Entry(1)));
    add(&log, 9_000_000, Parent::Salt(SALT));
    let events = events(&log, &mut index, &salts);
    assert_eq!(events[0], Event::Cleared);
    follow(&events, &mut known);
    assert_eq!(known, BTreeSet::from([9_000_000_000]));
}

#[test]
fn a_batch_is_written_as_vllm_writes_it() {
    let stored = Event::Stored {
        hashes: vec![1, u64::MAX],
        parent: Some(300),
        tokens: vec![5, 128],
        salt: Some("s".into()),
    };
    let events = [stored, Event::Removed(vec![70_000]), Event::Cleared];
    let array = batch::encode(&events, Encoding::Array, 1.0, 2, 1);
    let wanted = [
        &b"\x93\xcb\x3f\xf0\0\0\0\0\0\0\x93"[..],
        b"\x99\xabBlockStored\x92\x01\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xcd\x01\x2c",
        b"\x92\x05\xcc\x80\x01\xc0\xa3GPU\xc0\x92\x91\xa1s\xc0",
        b"\x93\xacBlockRemoved\x91\xce\x00\x01\x11\x70\xa3GPU",
        b"\x91\xb0AllBlocksCleared\x02",
    ];
    assert_eq!(array, wanted.concat());
    let map = batch::encode(&[Event::Removed(vec![7]), Event::Cleared], Encoding::Map, 1.0, 0, 1);
    let wanted: [&[u8]; 4] = [
        b"\x93\xcb\x3f\xf0\0\0\0\0\0\0\x92",
        b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x91\x07\xa6medium\xa3GPU",
        b"\x81\xa4type\xb0AllBlocksCleared",
        b"\0",
    ];
    assert_eq!(map, wanted.concat());
}

/// A connection that has said what it is.
fn peer(port: u16, socket_type: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut hello = vec![0; 64];
    (hello[0], hello[9], hello[10]) = (0xff, 0x7f, 3);
    hello[12..16].copy_from_slice(b"NULL");
    let body = [b"\x05READY\x0bSocket-Type\0\0\0", &[socket_type.len() as u8][..], socket_type];
    hello.extend_from_slice(&[4, body.concat().len() as u8]);
    stream.write_all(&[hello, body.concat()].concat()).unwrap();
    let mut greeting = [0; 64 + 2];
    stream.read_exact(&mut greeting).unwrap();
    stream.read_exact(&mut vec![0; usize::from(greeting[65])]).unwrap();
    stream
}

fn frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(head[1])];
    stream.read_exact(&mut body).unwrap();
    body
}

#[test]
fn what_a_subscriber_has_missed_can_be_replayed() {
    let sockets: Vec<TcpListener> =
        (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> =
        sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    let options = KvEventOptions {
        topic: "kv@pod".to_owned(),
        buffer_steps: 2,
        hwm: 100,
        replays: true,
        encoding: Encoding::Array,
    };
    let sockets: Vec<OwnedFd> = sockets.into_iter().map(OwnedFd::from).collect();
    let (publisher, logs) =
        KvEvents::start(&options, sockets, &[BLOCK_SIZE], Arc::new(salts())).unwrap();
    let mut subscriber = peer(ports[0], b"SUB");
    subscriber.write_all(&encode_message(&[b"\x01kv@"])).unwrap();
    let mut router = peer(ports[1], b"DEALER");
    let mut batches = Vec::new();
    for serial in 1..=3 {
        add(&logs[0], serial, Parent::Salt(SALT));
        // The subscription came first, so the batch is for it.
        assert_eq!(frame(&mut subscriber), b"kv@pod");
        assert_eq!(frame(&mut subscriber), (serial - 1).to_be_bytes());
        batches.push(frame(&mut subscriber));
    }
    for from in [0_u64, 2] {
        router.write_all(&encode_message(&[b"", &from.to_be_bytes()])).unwrap();
        for number in from.max(1)..3 {
            assert_eq!(frame(&mut router), b"");
            assert_eq!(frame(&mut router), number.to_be_bytes());
            assert_eq!(frame(&mut router), batches[number as usize]);
        }
        assert_eq!(
            [frame(&mut router), frame(&mut router), frame(&mut router)],
            [vec![], vec![0xff; 8], vec![]]
        );
    }
    router.write_all(&encode_message(&[b"nonsense"])).unwrap();
    assert_eq!(router.read(&mut [0; 1]).unwrap(), 0, "a malformed request ends its connection");
    let mut stranger = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // Reset or closed: bytes of it were not read.
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.len() <= 64);
    let mut text = String::new();
    publisher.metrics(&mut text);
    assert!(text.contains("\ningle:kv_events_batches_total 3\n"), "{text}");
    publisher.stop();
    assert_eq!(subscriber.read(&mut [0; 1]).unwrap(), 0, "the end closes the connections");
}
