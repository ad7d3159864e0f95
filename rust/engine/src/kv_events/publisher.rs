//! The thread that publishes: takes the engines' changes, numbers batches, serves subscribers and replays.
//! It sleeps in `poll` and holds no lock that an engine thread needs for longer than a swap.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use std::{io, mem};

use ingle_zmtp::{Role, encode_message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::batch;
use super::history::History;
use super::index::Index;
use super::listener::Listener;
use super::log::{Changes, EventLog, Wake};
use super::salts::SaltTable;
use super::settings::KvEventOptions;

/// Counts of the publisher, for /metrics.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) batches: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) subscribers: AtomicU64,
}

/// One engine: its log, and who listens to it.
pub(super) struct Source {
    log: Arc<EventLog>,
    block_size: u32,
    index: Index,
    history: History,
    publish: Listener,
    replay: Option<Listener>,
    /// Reused.
    changes: Changes,
}

impl Source {
    pub(super) fn new(
        log: &Arc<EventLog>,
        block_size: u32,
        options: &KvEventOptions,
        publish: OwnedFd,
        replay: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let listen = |socket, role| Listener::new(socket, role, options.hwm);
        Ok(Self {
            log: Arc::clone(log),
            block_size,
            index: Index::new(block_size),
            history: History::new(options.buffer_steps),
            publish: listen(publish, Role::Publisher)?,
            replay: replay.map(|socket| listen(socket, Role::Router)).transpose()?,
            changes: Changes::default(),
        })
    }

    fn listeners(&self) -> impl Iterator<Item = &Listener> {
        std::iter::once(&self.publish).chain(&self.replay)
    }

    /// Publishes what the engine's cache has done since the last time.
    fn collect(&mut self, rank: usize, all: &Publisher) {
        self.changes.list.clear();
        self.changes.tokens.clear();
        self.log.take(&mut self.changes);
        let events = self.index.apply(&self.changes, &all.salts);
        if events.is_empty() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let payload: Arc<[u8]> =
            batch::encode(&events, all.options.encoding, now, rank as u64, self.block_size).into();
        let number = self.history.push(Arc::clone(&payload));
        let topic = all.options.topic.as_bytes();
        let message = encode_message(&[topic, &number.to_be_bytes(), &payload]).into();
        let dropped = self.publish.publish(topic, &message);
        all.counts.batches.fetch_add(1, Ordering::Relaxed);
        all.counts.dropped.fetch_add(dropped, Ordering::Relaxed);
    }
}

/// The thread's state.
pub(super) struct Publisher {
    options: KvEventOptions,
    sources: Vec<Source>,
    salts: Arc<SaltTable>,
    wake: Arc<Wake>,
    counts: Arc<Counts>,
}

impl Publisher {
    pub(super) fn new(
        options: KvEventOptions,
        sources: Vec<Source>,
        salts: Arc<SaltTable>,
        wake: Arc<Wake>,
        counts: Arc<Counts>,
    ) -> Self {
        Self { options, sources, salts, wake, counts }
    }

    /// Serves until `Wake::stop`.
    pub(super) fn run(mut self) {
        loop {
            self.wait();
            let is_last = self.wake.clear();
            let now = Instant::now();
            let mut sources = mem::take(&mut self.sources);
            for (rank, source) in sources.iter_mut().enumerate() {
                // A subscription that came before a change gets that change.
                source.publish.receive(now);
                source.collect(rank, &self);
                source.publish.send(&source.history);
                if let Some(replay) = &mut source.replay {
                    replay.receive(now);
                    replay.send(&source.history);
                }
            }
            self.sources = sources;
            let listeners = self.sources.iter().flat_map(Source::listeners);
            let num_connections: usize = listeners.map(Listener::num_connections).sum();
            self.counts.subscribers.store(num_connections as u64, Ordering::Relaxed);
            if is_last {
                return;
            }
        }
    }

    /// Sleeps until a change comes, a socket is ready or a deadline has passed.
    fn wait(&self) {
        let mut interests = vec![(self.wake.fd(), PollFlags::IN)];
        let listeners = || self.sources.iter().flat_map(Source::listeners);
        listeners().for_each(|listener| listener.interests(&mut interests));
        let mut fds: Vec<PollFd<'_>> =
            interests.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let deadline = listeners().filter_map(Listener::deadline).min();
        let timeout = deadline.map(|at| {
            // A millisecond more, so that the deadline has passed when the poll ends.
            let left = at.saturating_duration_since(Instant::now()).as_millis() as i64 + 1;
            Timespec { tv_sec: left / 1000, tv_nsec: left % 1000 * 1_000_000 }
        });
        // An interrupted poll is a round without news. Nothing else can fail.
        let _ = poll(&mut fds, timeout.as_ref());
    }
}
