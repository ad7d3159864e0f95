//! [9] Sends frames: on the client's socket if it is attached and takes them at once, otherwise as
//! events for the event loop. Engine thread. Never waits for a client; a bad socket affects no other.

use std::ops::Range;

use ingle_core::{CoreEvent, Scheduler};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::commit::Committer;
use crate::histogram::add;
use crate::metrics::Metrics;
use crate::outbox::{Event, Outbox, Payload, error_payload};
use crate::stream::{Form, Route};

/// What became of the frames of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// On their way.
    Yes,
    /// The client has closed the connection.
    ClientGone,
    /// The event loop holds too much of this stream already.
    TooSlow,
}

impl Committer {
    /// Shows what is new in every touched stream, sends it and publishes the events. Streams whose
    /// client is gone are aborted; what the core says to that is appended to `core_events`.
    pub(crate) fn deliver(&mut self, scheduler: &mut Scheduler, core_events: &mut Vec<CoreEvent>) {
        let mut touched = std::mem::take(&mut self.touched);
        for key in touched.drain(..) {
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            let tokenizer = &self.shared.served.tokenizer;
            let frames = stream.show(tokenizer, &mut self.events, &mut self.shown);
            let is_over = stream.num_open == 0;
            let has_end = matches!(stream.form, Form::Events(..));
            match self.send_frames(key, frames) {
                Sent::Yes if is_over => {
                    self.remove(key);
                    if has_end {
                        self.events.push(Event { key, payload: Payload::StreamEnd });
                    }
                }
                Sent::Yes => {}
                Sent::ClientGone => {
                    let error = error_payload(CLIENT_GONE, "client_disconnected", 499);
                    self.events.push(Event { key, payload: error });
                    self.drop_stream(key, scheduler, core_events);
                }
                Sent::TooSlow => {
                    add(&self.shared.metrics.slow_readers, 1);
                    let error = error_payload(TOO_SLOW, "slow_reader", 500);
                    self.events.push(Event { key, payload: error });
                    self.drop_stream(key, scheduler, core_events);
                }
            }
        }
        self.touched = touched;
        self.shown.shrink_to(MAX_KEPT_BYTES);
        self.shared.outbox.publish(&mut self.events);
    }

    /// Sends the frames that the stream has just shown: the range `frames` of `shown`.
    pub(crate) fn send_frames(&mut self, key: u64, frames: Range<usize>) -> Sent {
        if frames.is_empty() {
            return Sent::Yes;
        }
        let Some(stream) = self.streams.get_mut(&key) else { return Sent::Yes };
        let mut sender = Sender {
            key,
            events: &mut self.events,
            outbox: &self.shared.outbox,
            metrics: &self.shared.metrics,
        };
        stream.sent_at = self.now;
        let sent = sender.send(&mut stream.route, &self.shown[frames]);
        self.shown.clear();
        sent
    }

    /// Shows life on a stream that has been silent, so that no proxy gives it up. Only the thread that
    /// sends its frames can: anybody else's bytes could fall between the pieces of a frame.
    pub(crate) fn ping(&mut self, key: u64) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        if self.now.0.saturating_sub(stream.sent_at.0) >= SILENCE_US {
            stream.wants_comment = true;
            // Marked as touched, so that `deliver` sends it and looks at the result.
            if !std::mem::replace(&mut stream.queued, true) {
                self.touched.push(key);
            }
        }
    }
}

struct Sender<'a> {
    key: u64,
    events: &'a mut Vec<Event>,
    outbox: &'a Outbox,
    metrics: &'a Metrics,
}

impl Sender<'_> {
    fn send(&mut self, route: &mut Route, bytes: &[u8]) -> Sent {
        match route {
            Route::Socket(socket) => {
                let is_first = !socket.head.is_empty();
                let head = std::mem::take(&mut socket.head);
                let with_head = is_first.then(|| [head.as_slice(), bytes].concat());
                let bytes = with_head.as_deref().unwrap_or(bytes);
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                let taken = loop {
                    match rustix::net::send(&socket.fd, bytes, flags) {
                        Ok(taken) => break taken,
                        Err(Errno::INTR) => {}
                        // NOBUFS and NOMEM: the machine is short of memory, which says nothing about the client.
                        Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => break 0,
                        Err(_) => return Sent::ClientGone,
                    }
                };
                add(&self.metrics.frames_sent, 1);
                if taken == bytes.len() {
                    return Sent::Yes;
                }
                // The kernel's buffer is full. The event loop can wait for room; this thread must not.
                let num_frames = socket.frames_seen;
                *route = Route::Drain { num_frames, bytes: 0, drain: self.outbox.drains() };
                let rest = bytes[taken..].to_vec();
                self.queue(
                    route,
                    if is_first { Payload::Headed(rest) } else { Payload::Frame(rest) },
                )
            }
            Route::Drain { .. } => self.queue(route, Payload::Frame(bytes.to_vec())),
        }
    }

    fn queue(&mut self, route: &mut Route, payload: Payload) -> Sent {
        let (Payload::Frame(frame) | Payload::Headed(frame)) = &payload else { return Sent::Yes };
        let Route::Drain { num_frames, bytes, drain } = route else { return Sent::Yes };
        let drains = self.outbox.drains();
        if *drain != drains {
            *drain = drains;
            *bytes = 0;
        }
        // Counts only earlier frames: one large frame does not mean that the client is slow.
        if *bytes > MAX_QUEUED_BYTES {
            return Sent::TooSlow;
        }
        *bytes += frame.len();
        *num_frames += 1;
        add(&self.metrics.frames_queued, 1);
        self.events.push(Event { key: self.key, payload });
        Sent::Yes
    }
}

/// Streams that sent something within so many micros need no comment.
const SILENCE_US: u64 = 10_000_000;
const CLIENT_GONE: &str = "the client closed the connection";
const TOO_SLOW: &str = "the stream was ended because the client reads too slowly";
/// Of the buffer that all streams show their frames in; a frame with many log-probs is larger.
const MAX_KEPT_BYTES: usize = 1 << 20;
/// Of one stream between two drains of the event loop; what the loop has taken is its own to bound.
const MAX_QUEUED_BYTES: usize = 1 << 20;
