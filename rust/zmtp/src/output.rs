//! Bytes that wait for a peer's socket. Any thread.

use std::collections::VecDeque;
use std::sync::Arc;

/// Whole messages in order, the first perhaps sent in part.
#[derive(Debug)]
pub(crate) struct Output {
    messages: VecDeque<Arc<[u8]>>,
    /// Bytes of the first that are sent.
    num_sent: usize,
    num_bytes: usize,
    max_messages: usize,
    max_bytes: usize,
}

impl Output {
    pub(crate) fn new(max_messages: usize, max_bytes: usize) -> Self {
        Self { messages: VecDeque::new(), num_sent: 0, num_bytes: 0, max_messages, max_bytes }
    }

    /// Whether the queue is full: nothing more fits until some is sent.
    pub(crate) fn is_full(&self) -> bool {
        self.messages.len() >= self.max_messages || self.num_bytes >= self.max_bytes
    }

    /// Queues a message; false if the queue is full, and then the message is dropped as a whole.
    pub(crate) fn push(&mut self, message: Arc<[u8]>) -> bool {
        if self.is_full() {
            return false;
        }
        self.num_bytes += message.len();
        self.messages.push_back(message);
        true
    }

    /// What to send next; empty if there is nothing.
    pub(crate) fn pending(&self) -> &[u8] {
        self.messages.front().map_or(&[], |message| &message[self.num_sent..])
    }

    /// The socket has taken so many bytes of `pending`.
    pub(crate) fn sent(&mut self, num_bytes: usize) {
        self.num_sent += num_bytes;
        let len = self.messages.front().map_or(0, |message| message.len());
        assert!(self.num_sent <= len, "more was sent than was pending");
        if self.num_sent == len {
            self.messages.pop_front();
            self.num_bytes -= len;
            self.num_sent = 0;
        }
    }
}
