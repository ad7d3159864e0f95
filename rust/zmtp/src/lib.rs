//! ZeroMQ's wire protocol, ZMTP 3.0 with the NULL mechanism, for a server that publishes (PUB) and
//! answers (ROUTER). No input or output: bytes of a peer go in, bytes for it come out. Any thread.
//!
//! The protocol is in <https://rfc.zeromq.org/spec/23/>; 3.1 (<https://rfc.zeromq.org/spec/37/>) adds the
//! commands for subscriptions and heartbeats, which peers may send too.
#![forbid(unsafe_code)]

mod error;
mod frame;
mod handshake;
mod output;
mod peer;
#[cfg(test)]
mod tests;

pub use error::ZmtpError;
pub use frame::encode_message;
pub use peer::{Peer, Role};
