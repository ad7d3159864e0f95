//! KV events: which blocks the prefix caches can find, published as vLLM does, so that routers outside know
//! where a prompt is cached. Off unless the operator gives sockets. The engine threads only copy tokens into a
//! log; one thread encodes and sends.
//!
//! ```text
//! prefix cache ─> EventLog ─eventfd─> publisher thread: index ─> batch ─> PUB peers
//! (engine thread)                                                  └────> history ─> ROUTER peers
//! ```

mod batch;
mod history;
mod index;
mod listener;
mod log;
mod publisher;
mod salts;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::EngineError;
use crate::threads::{self, USUAL_STACK_BYTES};
pub(crate) use log::EventLog;
use log::Wake;
use publisher::{Counts, Publisher, Source};
pub(crate) use salts::SaltTable;
pub use settings::{Encoding, KvEventOptions};

/// The publisher thread and what it shares with the engines.
pub(crate) struct KvEvents {
    wake: Arc<Wake>,
    counts: Arc<Counts>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl KvEvents {
    /// Starts publishing. `sockets` are bound TCP sockets, those of one engine after the other: one that
    /// publishes, and if `options.replays` one that replays. Returns the log of each engine.
    ///
    /// # Errors
    /// `EngineError::Model` if there are too few sockets, or one cannot listen.
    pub(crate) fn start(
        options: &KvEventOptions,
        sockets: Vec<OwnedFd>,
        block_sizes: &[u32],
        salts: Arc<SaltTable>,
    ) -> Result<(Self, Vec<Arc<EventLog>>), EngineError> {
        let sockets_per_engine = if options.replays { 2 } else { 1 };
        if sockets.len() != sockets_per_engine * block_sizes.len() {
            return Err(EngineError::Model(format!(
                "kv_events_config: {} sockets for {} engines",
                sockets.len(),
                block_sizes.len()
            )));
        }
        let failed = |error| EngineError::Model(format!("kv_events_config: {error}"));
        let wake = Arc::new(Wake::new().map_err(failed)?);
        let counts = Arc::<Counts>::default();
        let (mut logs, mut sources) = (Vec::new(), Vec::new());
        let mut sockets = sockets.into_iter();
        for &block_size in block_sizes {
            let log = Arc::new(EventLog::new(Arc::clone(&wake)));
            let publish = sockets.next();
            let replay = if options.replays { sockets.next() } else { None };
            let Some(publish) = publish else { break };
            let source = Source::new(&log, block_size, options, publish, replay);
            sources.push(source.map_err(failed)?);
            logs.push(log);
        }
        let publisher =
            Publisher::new(options.clone(), sources, salts, Arc::clone(&wake), Arc::clone(&counts));
        let thread = threads::start(THREAD, USUAL_STACK_BYTES, move || publisher.run())?;
        Ok((Self { wake, counts, thread: Mutex::new(Some(thread)) }, logs))
    }

    /// Sends what is left, as far as peers take it at once, and ends the thread. Idempotent.
    pub(crate) fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        self.wake.stop();
        // A panic has been reported by the hook.
        let _ = thread.join();
    }

    /// Prometheus text.
    pub(crate) fn metrics(&self, out: &mut String) {
        let counts = &self.counts;
        for (name, help, kind, value) in [
            ("batches_total", "Batches of KV events published.", "counter", &counts.batches),
            ("dropped_total", "Messages that slow subscribers missed.", "counter", &counts.dropped),
            ("subscribers", "Connections to the KV event sockets.", "gauge", &counts.subscribers),
        ] {
            let value = value.load(Ordering::Relaxed);
            let name = format!("ingle:kv_events_{name}");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
    }
}

impl Drop for KvEvents {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Its name in `top -H`.
const THREAD: &str = "ingle-kv-events";
