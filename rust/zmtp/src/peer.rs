//! One connection from its greeting on. Any thread, one at a time.

use std::sync::Arc;

use crate::error::ZmtpError;
use crate::frame::{COMMAND, Frame, put, split};
use crate::handshake::{GREETING_LEN, check_greeting, check_ready, command, greeting, ready};
use crate::output::Output;

/// What our side of the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// PUB: peers subscribe to topics.
    Publisher,
    /// ROUTER: peers send messages and get answers.
    Router,
}

/// A connected peer. Its memory is bounded by the limits of `new` and the constants below.
#[derive(Debug)]
pub struct Peer {
    role: Role,
    stage: Stage,
    input: Vec<u8>,
    output: Output,
    /// PUB: the prefixes of topics that the peer wants.
    subscriptions: Vec<Vec<u8>>,
    /// Frames of the message that is coming.
    frames: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Ready,
    Open,
}

impl Peer {
    /// A peer that has just connected; our greeting is pending. At most `max_messages` messages and about
    /// `max_bytes` bytes wait for it.
    #[must_use]
    pub fn new(role: Role, max_messages: usize, max_bytes: usize) -> Self {
        let mut output = Output::new(max_messages.max(MIN_MESSAGES), max_bytes);
        output.push(Arc::from(greeting()));
        Self {
            role,
            stage: Stage::Greeting,
            input: Vec::new(),
            output,
            subscriptions: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// Whether both sides have introduced themselves.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Takes bytes that the peer has sent. Whole messages for a ROUTER go to `messages`, each a list of
    /// frames.
    ///
    /// # Errors
    /// The connection must then be closed.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        messages: &mut Vec<Vec<Vec<u8>>>,
    ) -> Result<(), ZmtpError> {
        self.input.extend_from_slice(bytes);
        let mut input = std::mem::take(&mut self.input);
        let mut used = 0;
        if self.stage == Stage::Greeting {
            if !check_greeting(&input)? {
                self.input = input;
                return Ok(());
            }
            used = GREETING_LEN;
            self.stage = Stage::Ready;
            self.output.push(Arc::from(ready(self.socket_type())));
        }
        while let Some((frame, len)) = split(&input[used..], MAX_FRAME)? {
            self.take_frame(frame, messages)?;
            used += len;
        }
        input.drain(..used);
        self.input = input;
        Ok(())
    }

    /// Whether a PUB's peer wants messages of this topic.
    #[must_use]
    pub fn wants(&self, topic: &[u8]) -> bool {
        self.is_open() && self.subscriptions.iter().any(|prefix| topic.starts_with(prefix))
    }

    /// Queues a message of `encode_message`; false if too much waits already, and it is dropped.
    pub fn send(&mut self, message: Arc<[u8]>) -> bool {
        self.output.push(message)
    }

    /// Whether `send` would drop a message now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.output.is_full()
    }

    /// Bytes for the peer's socket; empty if there are none.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        self.output.pending()
    }

    /// The socket has taken so many bytes of `pending`.
    ///
    /// # Panics
    /// If that is more than was pending.
    pub fn sent(&mut self, num_bytes: usize) {
        self.output.sent(num_bytes);
    }

    fn socket_type(&self) -> &'static str {
        match self.role {
            Role::Publisher => "PUB",
            Role::Router => "ROUTER",
        }
    }

    fn take_frame(
        &mut self,
        frame: Frame<'_>,
        messages: &mut Vec<Vec<Vec<u8>>>,
    ) -> Result<(), ZmtpError> {
        if self.stage == Stage::Ready {
            let allowed: &[&str] = match self.role {
                Role::Publisher => &["SUB", "XSUB"],
                Role::Router => &["REQ", "DEALER", "ROUTER"],
            };
            check_ready(frame, allowed)?;
            self.stage = Stage::Open;
            return Ok(());
        }
        if frame.is_command {
            return self.take_command(frame.body);
        }
        match self.role {
            Role::Publisher => self.take_subscription(frame),
            Role::Router => {
                if self.frames.len() >= MAX_FRAMES {
                    return Err(ZmtpError::TooMuch);
                }
                self.frames.push(frame.body.to_vec());
                if !frame.has_more {
                    messages.push(std::mem::take(&mut self.frames));
                }
                Ok(())
            }
        }
    }

    /// ZMTP 3.0: a message of one frame, whose first byte says what to do with the topic behind it.
    fn take_subscription(&mut self, frame: Frame<'_>) -> Result<(), ZmtpError> {
        match frame.body.split_first() {
            Some((1, topic)) => self.subscribe(topic),
            Some((0, topic)) => {
                self.cancel(topic);
                Ok(())
            }
            // An XSUB may send messages of its own upstream; nobody reads them.
            _ => Ok(()),
        }
    }

    fn take_command(&mut self, body: &[u8]) -> Result<(), ZmtpError> {
        let (name, rest) = command(body).ok_or(ZmtpError::Frame)?;
        match name {
            b"SUBSCRIBE" if self.role == Role::Publisher => self.subscribe(rest),
            b"CANCEL" if self.role == Role::Publisher => {
                self.cancel(rest);
                Ok(())
            }
            b"PING" => {
                // Two bytes of time to live, then a context of at most 16 bytes that comes back.
                let context = rest.get(2..).filter(|context| context.len() <= 16);
                let mut pong = b"\x04PONG".to_vec();
                pong.extend_from_slice(context.ok_or(ZmtpError::Frame)?);
                let mut out = Vec::new();
                put(&mut out, COMMAND, &pong);
                // A peer that reads nothing learns by its own time-out what that costs it.
                self.output.push(out.into());
                Ok(())
            }
            b"ERROR" => Err(ZmtpError::Refused),
            _ => Ok(()),
        }
    }

    fn subscribe(&mut self, topic: &[u8]) -> Result<(), ZmtpError> {
        if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            return Err(ZmtpError::TooMuch);
        }
        // A topic that is subscribed twice is cancelled twice, so each is kept.
        self.subscriptions.push(topic.to_vec());
        Ok(())
    }

    fn cancel(&mut self, topic: &[u8]) {
        if let Some(place) = self.subscriptions.iter().position(|each| each == topic) {
            self.subscriptions.swap_remove(place);
        }
    }
}

/// Bytes of a frame that a peer sends: topics, and requests of eight bytes.
const MAX_FRAME: usize = 1024;
/// Frames of a message that a peer sends.
const MAX_FRAMES: usize = 8;
const MAX_SUBSCRIPTIONS: usize = 256;
/// The handshake must fit whatever the limit is.
const MIN_MESSAGES: usize = 4;
