//! What a prefix cache has done and the publisher has not seen. The engine thread writes, the publisher
//! takes; neither waits longer than a swap of two vectors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ingle_core::{CachedBlock, Parent, PrefixWatcher};
use rustix::event::{EventfdFlags, eventfd};

/// Changes of one engine's cache.
#[derive(Debug)]
pub(crate) struct EventLog {
    changes: Mutex<Changes>,
    wake: Arc<Wake>,
}

/// Changes in the order in which they happened.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) list: Vec<Change>,
    /// Those of the added blocks, one block after the other.
    pub(super) tokens: Vec<u32>,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Added {
        hash: u64,
        serial: u64,
        parent: Parent,
    },
    Removed {
        serial: u64,
    },
    /// Nothing before this can be found; or the publisher was so late that changes were dropped, which
    /// comes to the same for a reader.
    Cleared,
}

impl EventLog {
    pub(super) fn new(wake: Arc<Wake>) -> Self {
        Self { changes: Mutex::default(), wake }
    }

    /// Takes all changes into the empty `into`.
    pub(super) fn take(&self, into: &mut Changes) {
        std::mem::swap(&mut *self.lock(), into);
    }

    fn put(&self, change: Change, tokens: impl Iterator<Item = u32>) {
        let mut changes = self.lock();
        if changes.list.len() >= MAX_CHANGES {
            changes.list.clear();
            changes.tokens.clear();
            changes.list.push(Change::Cleared);
        }
        changes.list.push(change);
        changes.tokens.extend(tokens);
        drop(changes);
        self.wake.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        // A panic while it was held leaves valid vectors.
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PrefixWatcher for EventLog {
    fn added(&self, block: &CachedBlock<'_>) {
        let CachedBlock { hash, serial, parent, tokens } = *block;
        let change = Change::Added { hash: hash as u64, serial, parent };
        self.put(change, tokens.iter().map(|token| token.0));
    }

    fn removed(&self, _hash: u128, serial: u64) {
        self.put(Change::Removed { serial }, std::iter::empty());
    }

    fn cleared(&self) {
        self.put(Change::Cleared, std::iter::empty());
    }
}

/// Wakes the publisher: at most one write between two rounds of it.
#[derive(Debug)]
pub(super) struct Wake {
    fd: OwnedFd,
    is_armed: AtomicBool,
    is_stopped: AtomicBool,
}

impl Wake {
    pub(super) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, is_armed: AtomicBool::new(false), is_stopped: AtomicBool::new(false) })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn wake(&self) {
        if !self.is_armed.swap(true, Ordering::AcqRel) {
            // Fails only if the counter is full, and then the descriptor is readable already.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.wake();
    }

    /// Clears the descriptor, so that what comes from here on wakes again; true once `stop` was called.
    /// If there is nothing to clear yet, the write is on its way: `is_armed` stays.
    pub(super) fn clear(&self) -> bool {
        if self.is_armed.load(Ordering::Acquire)
            && rustix::io::read(&self.fd, &mut [0_u8; 8]).is_ok()
        {
            self.is_armed.store(false, Ordering::Release);
        }
        self.is_stopped.load(Ordering::Acquire)
    }
}

/// Changes that wait for the publisher: far more than a step makes.
pub(super) const MAX_CHANGES: usize = 1 << 18;
