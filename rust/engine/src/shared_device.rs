//! [4] One device for the engines of several models, which take turns on it. Each engine thread asks
//! before it plans a step; the thread whose turn comes is woken by a message. The policy is the core's
//! (`DeviceTime`). Nothing is computed under the lock. A process with one model has none of this.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ingle_core::{DeviceTime, LaneId, Micros, Turn};

use crate::clock::Clock;
use crate::inbox::Message;
use crate::shared::Shared;

/// A device that several models share; each of their engines gets a clone of the `Arc`.
#[derive(Debug)]
pub struct SharedDevice {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    time: DeviceTime,
    threads: Vec<(LaneId, Weak<Shared>)>,
}

impl Default for SharedDevice {
    fn default() -> Self {
        Self { clock: Clock::start(), state: Mutex::default() }
    }
}

impl SharedDevice {
    /// The state stays whole if a thread panics while it holds the lock: that is a fault of the policy,
    /// and the threads that come later run into its assertions as well.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the policy's state and wakes the thread whose turn has come.
    fn change(&self, change: impl FnOnce(&mut State, Micros) -> Option<LaneId>) {
        let mut state = self.lock();
        // Under the lock, so that time does not go back for the policy.
        let next = change(&mut state, self.clock.now());
        let thread = next.and_then(|next| {
            let found = state.threads.iter().find(|(id, _)| *id == next);
            found.and_then(|(_, thread)| thread.upgrade())
        });
        drop(state);
        if let Some(thread) = thread {
            // A closed inbox belongs to an engine that is about to leave.
            let _ = thread.inbox.put(Message::Turn);
        }
    }
}

/// One engine's place among those that share a device. Leaves it when dropped. Engine thread only.
#[derive(Debug)]
pub(crate) struct DeviceTurns {
    device: Arc<SharedDevice>,
    id: LaneId,
}

impl DeviceTurns {
    /// `weight`: see `DeviceTime::join`.
    pub(crate) fn join(device: &Arc<SharedDevice>, weight: u32, thread: &Arc<Shared>) -> Self {
        let mut state = device.lock();
        let id = state.time.join(weight);
        state.threads.push((id, Arc::downgrade(thread)));
        drop(state);
        Self { device: Arc::clone(device), id }
    }

    /// Whether this engine may submit a step, and of how many rows. If not, `Message::Turn` comes.
    pub(crate) fn ask(&self) -> Turn {
        let mut state = self.device.lock();
        let now = self.device.clock.now();
        state.time.ask(self.id, now)
    }

    /// It has submitted a step.
    pub(crate) fn submitted(&self, num_rows: u32) {
        self.device.change(|state, now| {
            state.time.submitted(self.id, num_rows, now);
            None
        });
    }

    /// Its oldest step has ended.
    pub(crate) fn completed(&self) {
        self.device.change(|state, now| state.time.completed(self.id, now));
    }

    /// It has nothing to submit.
    pub(crate) fn pass(&self) {
        self.device.change(|state, now| state.time.pass(self.id, now));
    }
}

impl Drop for DeviceTurns {
    fn drop(&mut self) {
        self.device.change(|state, now| {
            state.threads.retain(|(id, _)| *id != self.id);
            state.time.leave(self.id, now)
        });
    }
}
