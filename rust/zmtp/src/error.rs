//! Why a peer is dropped. Any thread.

/// A peer that breaks the protocol, or a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// Not ZeroMQ's signature.
    #[error("the peer does not speak ZMTP")]
    Signature,
    /// Older than 3.0.
    #[error("the peer speaks ZMTP {0}, and 3 is needed")]
    Version(u8),
    /// Another mechanism than NULL.
    #[error("the peer wants another security mechanism than NULL")]
    Mechanism,
    /// The first frame is not a well-formed READY.
    #[error("the peer's READY command is malformed")]
    Ready,
    /// Such as a PUSH socket.
    #[error("the peer's socket type does not fit")]
    SocketType,
    /// Unknown flags, or a command that is not well-formed.
    #[error("the peer sent a malformed frame")]
    Frame,
    /// A frame, a message or a list of subscriptions beyond its limit.
    #[error("the peer sent more than is allowed")]
    TooMuch,
    /// The peer has sent ERROR.
    #[error("the peer refused the connection")]
    Refused,
}
