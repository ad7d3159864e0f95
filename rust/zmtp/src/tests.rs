//! Whole conversations as bytes, cut anywhere; and what each malformed byte is refused as.

use std::sync::Arc;

use crate::frame::{Frame, split};
use crate::{Peer, Role, ZmtpError, encode_message};

fn greeting(major: u8, mechanism: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, major);
    bytes[12..12 + mechanism.len()].copy_from_slice(mechanism);
    bytes
}

fn command(body: &[u8]) -> Vec<u8> {
    [&[4, u8::try_from(body.len()).unwrap()], body].concat()
}

fn ready(socket_type: &[u8]) -> Vec<u8> {
    let len = u8::try_from(socket_type.len()).unwrap();
    let head: &[u8] = b"\x05READY\x08Identity\0\0\0\0\x0bSocket-Type\0\0\0";
    command(&[head, &[len], socket_type].concat())
}

fn hello(socket_type: &[u8]) -> Vec<u8> {
    [greeting(3, b"NULL"), ready(socket_type)].concat()
}

fn drained(peer: &mut Peer) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(&byte) = peer.pending().first() {
        out.push(byte);
        peer.sent(1);
    }
    out
}

#[test]
fn a_subscriber_gets_what_it_asked_for_however_its_bytes_are_cut() {
    let subscribe = encode_message(&[b"\x01kv@"]);
    let cancel = command(b"\x06CANCELkv@");
    for step in [1, 3, 200] {
        let mut peer = Peer::new(Role::Publisher, 10, 1000);
        let mut none = Vec::new();
        for piece in [hello(b"SUB"), subscribe.clone()].concat().chunks(step) {
            assert!(!peer.wants(b"kv@pod"));
            peer.receive(piece, &mut none).unwrap();
        }
        assert!(peer.is_open() && peer.wants(b"kv@pod") && !peer.wants(b"kv"));
        let out = drained(&mut peer);
        assert_eq!(out[..64], greeting(3, b"NULL"));
        assert_eq!(out[64..], command(b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"));
        assert!(peer.send(encode_message(&[b"kv@pod", &[7; 300]]).into()));
        let sent = drained(&mut peer);
        assert_eq!(sent[..17], *b"\x01\x06kv@pod\x02\0\0\0\0\0\0\x01\x2c");
        assert_eq!(sent.len(), 17 + 300);
        peer.receive(&cancel, &mut none).unwrap();
        assert!(!peer.wants(b"kv@pod") && none.is_empty());
    }
}

#[test]
fn a_router_gets_whole_messages() {
    let mut peer = Peer::new(Role::Router, 10, 1000);
    let request = encode_message(&[b"", &9_u64.to_be_bytes()]);
    let mut messages = Vec::new();
    for byte in [hello(b"REQ"), request.clone(), request].concat() {
        peer.receive(&[byte], &mut messages).unwrap();
    }
    let message = vec![Vec::new(), vec![0, 0, 0, 0, 0, 0, 0, 9]];
    assert_eq!(messages, [message.clone(), message]);
}

#[test]
fn a_heartbeat_is_answered_with_its_context() {
    let mut peer = Peer::new(Role::Publisher, 10, 1000);
    peer.receive(&hello(b"XSUB"), &mut Vec::new()).unwrap();
    drained(&mut peer);
    peer.receive(&command(b"\x04PING\0\x0aabc"), &mut Vec::new()).unwrap();
    assert_eq!(drained(&mut peer), command(b"\x04PONGabc"));
}

#[test]
fn a_peer_that_breaks_the_protocol_is_refused_for_its_reason() {
    use ZmtpError::{Frame, Mechanism, Ready, Refused, Signature, SocketType, TooMuch, Version};
    let after = |bytes: &[u8]| [&hello(b"SUB"), bytes].concat();
    let long = [&[2_u8][..], &u64::MAX.to_be_bytes()].concat();
    let many = encode_message(&[b"\x01t"]).repeat(257);
    for (bytes, error) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), Signature),
        (greeting(1, b"NULL"), Version(1)),
        (greeting(3, b"PLAIN"), Mechanism),
        (hello(b"PUSH"), SocketType),
        ([greeting(3, b"NULL"), encode_message(&[b"\x05READY"])].concat(), Ready),
        ([greeting(3, b"NULL"), command(b"\x05READY\x0bSocket-Type\0\0\x01\0SUB")].concat(), Ready),
        ([greeting(3, b"NULL"), command(b"\x09READY")].concat(), Ready),
        ([greeting(3, b"NULL"), command(b"\x05ERROR\x01x")].concat(), Refused),
        (after(&[8, 0]), Frame),
        (after(&[5, 0]), Frame),
        (after(&command(b"\x09PING")), Frame),
        (after(&command(b"\x04PING\0")), Frame),
        (after(&command(b"\x05ERROR")), Refused),
        (after(&long), TooMuch),
        (after(&many), TooMuch),
    ] {
        let mut peer = Peer::new(Role::Publisher, 10, 1000);
        assert_eq!(peer.receive(&bytes, &mut Vec::new()), Err(error), "{bytes:?}");
    }
    let mut peer = Peer::new(Role::Router, 10, 1000);
    let endless = [hello(b"DEALER"), [1, 0].repeat(9)].concat();
    assert_eq!(peer.receive(&endless, &mut Vec::new()), Err(TooMuch));
}

#[test]
fn a_slow_peer_loses_whole_messages_and_never_a_part() {
    let mut peer = Peer::new(Role::Publisher, 6, 1 << 20);
    peer.receive(&hello(b"SUB"), &mut Vec::new()).unwrap();
    let message: Arc<[u8]> = encode_message(&[b"t", b"abc"]).into();
    // Greeting and READY wait too.
    let taken = (0..9).filter(|_| peer.send(Arc::clone(&message))).count();
    assert!(taken == 4 && peer.is_full());
    peer.sent(10);
    assert!(!peer.send(Arc::clone(&message)), "the first message is still on its way");
    assert_eq!(drained(&mut peer).len(), 54 + 28 + 4 * message.len() - 1);
    assert!(peer.send(message));
    let mut small = Peer::new(Role::Publisher, 100, 70);
    assert!(small.send(Arc::from([0; 500])) && !small.send(Arc::from([0; 1])));
}

#[test]
fn a_frame_is_whole_or_awaited() {
    let message = encode_message(&[&[9; 300]]);
    for len in 0..message.len() {
        assert_eq!(split(&message[..len], 300), Ok(None));
    }
    let frame = Frame { is_command: false, has_more: false, body: &[9; 300] };
    assert_eq!(split(&message, 300), Ok(Some((frame, message.len()))));
    assert_eq!(split(&message, 299), Err(ZmtpError::TooMuch));
}
