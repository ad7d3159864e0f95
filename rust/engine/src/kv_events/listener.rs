//! A listening socket and the peers that have connected to it. Publisher thread. Nothing here blocks, and
//! no peer can make it hold more than the limits below.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ingle_zmtp::{Peer, Role, encode_message};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags, sockopt};

use super::history::History;

/// One socket of one engine.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    role: Role,
    max_messages: usize,
    connections: Vec<Connection>,
    /// After the process ran out of descriptors, when to accept again.
    resumes: Option<Instant>,
}

/// One peer and its socket.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    peer: Peer,
    /// When it must have introduced itself.
    deadline: Instant,
    /// Replays that it has asked for: the next batch of each.
    replays: VecDeque<u64>,
    is_over: bool,
}

impl Listener {
    /// Listens on a bound socket.
    pub(super) fn new(socket: OwnedFd, role: Role, max_messages: usize) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        net::listen(&socket, BACKLOG)?;
        Ok(Self { socket, role, max_messages, connections: Vec::new(), resumes: None })
    }

    pub(super) fn num_connections(&self) -> usize {
        self.connections.len()
    }

    /// What to wait for: each descriptor with its events.
    pub(super) fn interests<'a>(&'a self, out: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        if self.resumes.is_none() && self.connections.len() < MAX_CONNECTIONS {
            out.push((self.socket.as_fd(), PollFlags::IN));
        }
        for each in &self.connections {
            let wants_out = !each.peer.pending().is_empty();
            let flags = if wants_out { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            out.push((each.socket.as_fd(), flags));
        }
    }

    /// The next moment at which something must happen without any event.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let silent = self.connections.iter().filter(|each| !each.peer.is_open());
        silent.map(|each| each.deadline).chain(self.resumes).min()
    }

    /// Takes new peers, and what peers have sent; drops those that are late or break the protocol.
    pub(super) fn receive(&mut self, now: Instant) {
        if self.resumes.is_some_and(|at| at <= now) {
            self.resumes = None;
        }
        for each in &mut self.connections {
            each.receive();
            each.is_over |= !each.peer.is_open() && each.deadline <= now;
        }
        self.connections.retain(|each| !each.is_over);
        while self.resumes.is_none() && self.connections.len() < MAX_CONNECTIONS {
            match net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    make_lively(&socket);
                    self.connections.push(Connection {
                        socket,
                        peer: Peer::new(self.role, self.max_messages, MAX_WAITING_BYTES),
                        deadline: now + HANDSHAKE,
                        replays: VecDeque::new(),
                        is_over: false,
                    });
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // Out of descriptors or memory: the poll would return at once, again and again.
                Err(_) => self.resumes = Some(now + PAUSE),
            }
        }
    }

    /// Queues a message for every peer that wants the topic; returns how many lost it.
    pub(super) fn publish(&mut self, topic: &[u8], message: &Arc<[u8]>) -> u64 {
        let subscribers = self.connections.iter_mut().filter(|each| each.peer.wants(topic));
        subscribers.map(|each| u64::from(!each.peer.send(Arc::clone(message)))).sum()
    }

    /// Sends what peers take at once, replays included.
    pub(super) fn send(&mut self, history: &History) {
        for each in &mut self.connections {
            each.send(history);
        }
        self.connections.retain(|each| !each.is_over);
    }
}

impl Connection {
    fn receive(&mut self) {
        let mut buffer = [0_u8; READ_BYTES];
        let num_bytes = match net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return self.is_over = true,
            Ok((num_bytes, _)) => num_bytes,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => return self.is_over = true,
        };
        let mut messages = Vec::new();
        self.is_over |= self.peer.receive(&buffer[..num_bytes], &mut messages).is_err();
        for message in messages {
            match replay_request(&message) {
                Some(from) if self.replays.len() < MAX_REPLAYS => self.replays.push_back(from),
                _ => self.is_over = true,
            }
        }
    }

    fn send(&mut self, history: &History) {
        loop {
            self.feed(history);
            let pending = self.peer.pending();
            if pending.is_empty() || self.is_over {
                return;
            }
            match net::send(&self.socket, pending, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(num_bytes) => self.peer.sent(num_bytes),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => self.is_over = true,
            }
        }
    }

    /// Queues batches of a replay as long as the peer's queue has room.
    fn feed(&mut self, history: &History) {
        while let Some(next) = self.replays.front_mut() {
            if self.peer.is_full() {
                return;
            }
            let message = match history.first_from(*next) {
                Some((number, batch)) => {
                    *next = number + 1;
                    encode_message(&[b"", &number.to_be_bytes(), batch])
                }
                None => {
                    self.replays.pop_front();
                    encode_message(&[b"", &END_OF_REPLAY.to_be_bytes(), b""])
                }
            };
            self.peer.send(message.into());
        }
    }
}

/// The first batch that the message asks for: an empty frame, then a number of eight bytes.
fn replay_request(message: &[Vec<u8>]) -> Option<u64> {
    let [empty, number] = message else { return None };
    let number: [u8; 8] = number.as_slice().try_into().ok()?;
    empty.is_empty().then_some(u64::from_be_bytes(number))
}

/// A peer whose machine is gone leaves after about two minutes. Options that cannot be set change no more
/// than that.
fn make_lively(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(60));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(15));
    let _ = sockopt::set_tcp_keepcnt(socket, 4);
}

const BACKLOG: i32 = 16;
/// Of one socket. A fleet has a few routers.
const MAX_CONNECTIONS: usize = 64;
/// Bytes that wait for one peer.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Replays that one peer may have asked for at once.
const MAX_REPLAYS: usize = 16;
const READ_BYTES: usize = 4096;
const HANDSHAKE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(1);
/// -1, the number of the frame that ends a replay.
const END_OF_REPLAY: u64 = u64::MAX;
