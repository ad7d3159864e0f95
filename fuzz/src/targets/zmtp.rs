//! Bytes of a peer of the KV events' sockets: whatever comes and however it is cut, the connection is kept
//! or refused, holds little memory, and sees the same messages.

use ingle_zmtp::{Peer, Role};

use crate::driver::{Outcome, Target};

/// Both roles; the input's first byte chooses the role and how the rest is cut.
#[derive(Debug)]
pub(super) struct Zmtp;

impl Target for Zmtp {
    fn name(&self) -> &'static str {
        "zmtp"
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "\u{5}READY",
            "\u{b}Socket-Type",
            "\0\0\0\u{3}SUB",
            "\0\0\0\u{6}DEALER",
            "\u{9}SUBSCRIBE",
            "\u{6}CANCEL",
            "\u{4}PING\0\n",
            "\u{5}ERROR",
            "\u{1}\0",
            "\0\u{8}\0\0\0\0\0\0\0\u{1}",
        ]
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut greeting = vec![0; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        let seed = |role: u8, rest: &[u8]| [&[role], &*greeting, rest].concat();
        vec![
            seed(0, b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\x00\x04\x01kv@"),
            seed(1, b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x01\x00\x00\x08\0\0\0\0\0\0\0\x01"),
            b"\0GET / HTTP/1.1\r\n\r\n".to_vec(),
        ]
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let Some((&form, bytes)) = input.split_first() else { return Outcome::of("empty") };
        let role = if form & 1 == 0 { Role::Publisher } else { Role::Router };
        let whole = talk(role, bytes, bytes.len().max(1));
        let cut = talk(role, bytes, usize::from(form / 2).max(1));
        // The peer may be refused at another byte, but for the same reason and after the same messages.
        assert_eq!(whole, cut, "what a peer sent depends on how it was cut");
        let (result, messages, wants) = whole;
        Outcome::of((result, messages.len().min(4), wants))
    }
}

type Talk = (Result<(), String>, Vec<Vec<Vec<u8>>>, bool);

fn talk(role: Role, bytes: &[u8], step: usize) -> Talk {
    let mut peer = Peer::new(role, 8, 1000);
    let mut messages = Vec::new();
    for piece in bytes.chunks(step) {
        if let Err(error) = peer.receive(piece, &mut messages) {
            return (Err(error.to_string()), messages, false);
        }
        let num_pending = peer.pending().len();
        peer.sent(num_pending);
    }
    let wants = peer.wants(b"kv@pod");
    (Ok(()), messages, wants)
}
