//! [4] One device for the engines of several models: they take turns on it and, where not all fit, make room
//! for each other in its memory. Engine threads ask before they plan a step and report what changes; they are
//! woken by messages. The policies are the core's (`DeviceTime`, `DeviceMemory`). Nothing is computed under
//! the lock. A process with one model has none of this.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ingle_core::{DeviceMemory, DeviceTime, LaneId, Micros, ModelMemory, Move, Turn};

use crate::clock::Clock;
use crate::error::EngineError;
use crate::inbox::Message;
use crate::presence::Swap;
use crate::shared::Shared;
use crate::threads::{self, USUAL_STACK_BYTES};

/// A device that several models share. Keep it as long as their engines: without it, no model that waits for
/// memory is looked at again.
#[derive(Debug)]
pub struct SharedDevice {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    clock: Clock,
    state: Mutex<State>,
    /// A model has come, gone or begun to wait for memory; or the end.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    time: DeviceTime,
    memory: Option<DeviceMemory>,
    /// How long requests wait for memory.
    patience: Micros,
    threads: Vec<(LaneId, Weak<Shared>)>,
    is_closed: bool,
}

/// Messages, and the engines that they are for.
type Mail = Vec<(Arc<Shared>, Message)>;

impl SharedDevice {
    /// A device for models of which all fit.
    #[must_use]
    pub fn new() -> Self {
        Self { inner: Arc::new(Inner::new(State::default())) }
    }

    /// A device whose models take `memory_bytes` at most while they are awake, their weights and KV pools
    /// together. Requests for one that sleeps wait for `patience_s` seconds at most.
    ///
    /// # Errors
    /// `EngineError::Model` if the thread that looks after waiting models cannot be started.
    pub fn with_memory(memory_bytes: u64, patience_s: u32) -> Result<Self, EngineError> {
        let this = Self {
            inner: Arc::new(Inner::new(State {
                memory: Some(DeviceMemory::new(memory_bytes)),
                patience: Micros(u64::from(patience_s) * 1_000_000),
                ..State::default()
            })),
        };
        let inner = Arc::clone(&this.inner);
        // Ends with `this`.
        threads::start("ingle-swap", USUAL_STACK_BYTES, move || inner.look_after())?;
        Ok(this)
    }

    /// Whether models make room for each other.
    pub(crate) fn swaps(&self) -> bool {
        self.inner.lock().memory.is_some()
    }
}

impl Default for SharedDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SharedDevice {
    fn drop(&mut self) {
        self.inner.lock().is_closed = true;
        self.inner.changed.notify_all();
    }
}

impl Inner {
    fn new(state: State) -> Self {
        Self { clock: Clock::start(), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The state stays whole if a thread panics while it holds the lock: that is a fault of the policy,
    /// and the threads that come later run into its assertions as well.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the policies' state and sends what follows from it.
    fn change(&self, change: impl FnOnce(&mut State, Micros) -> Option<LaneId>) {
        self.alter(false, change);
    }

    /// `change`; `moved`: a model has come or gone.
    fn alter(&self, moved: bool, change: impl FnOnce(&mut State, Micros) -> Option<LaneId>) {
        let mut state = self.lock();
        // Under the lock, so that time does not go back for the policies.
        let now = self.clock.now();
        let turn = change(&mut state, now);
        let mail = state.mail(turn, now);
        let waits = state.memory.as_ref().is_some_and(|memory| memory.look_again(now).is_some());
        drop(state);
        if waits || moved {
            self.changed.notify_all();
        }
        send(mail);
    }

    /// Looks at models that wait for memory, as time passes. Its own thread.
    fn look_after(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let now = self.clock.now();
            let mail = state.mail(None, now);
            if !mail.is_empty() {
                drop(state);
                send(mail);
                state = self.lock();
                continue;
            }
            let again = state.memory.as_ref().and_then(|memory| memory.look_again(now));
            state = match again {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let wait = Duration::from_micros(at.0.saturating_sub(now.0));
                    let waited = self.changed.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl State {
    /// The memory, if models make room for each other and this one has not left.
    fn memory_of(&mut self, id: LaneId) -> Option<&mut DeviceMemory> {
        self.memory.as_mut().filter(|memory| memory.shown(id).is_some())
    }

    /// The message of the model whose turn has come, and those of models that are to move.
    fn mail(&mut self, turn: Option<LaneId>, now: Micros) -> Mail {
        let mut messages: Vec<(LaneId, Message)> = Vec::new();
        messages.extend(turn.map(|id| (id, Message::Turn)));
        if let Some(memory) = &mut self.memory {
            while let Some(next) = memory.next(now) {
                messages.push(match next {
                    Move::Wake(id) => (id, Message::Swap(Swap::Return)),
                    Move::Sleep(id) => (id, Message::Swap(Swap::Leave)),
                    Move::Resize { id, bytes, preempts } => {
                        (id, Message::Swap(Swap::Resize { bytes, preempts }))
                    }
                });
            }
            while let Some(id) = memory.overdue(self.patience, now) {
                messages.push((id, Message::Swap(Swap::Overdue)));
            }
        }
        let thread = |id| {
            let found = self.threads.iter().find(|(other, _)| *other == id);
            found.and_then(|(_, thread)| thread.upgrade())
        };
        messages.into_iter().filter_map(|(id, message)| Some((thread(id)?, message))).collect()
    }
}

fn send(mail: Mail) {
    for (thread, message) in mail {
        // A closed inbox belongs to an engine that is about to leave.
        let _ = thread.inbox.put(message);
    }
}

/// One model's place among those that share a device, and whether its weights are in the memory.
#[derive(Clone, Debug)]
pub struct DevicePlace {
    device: Arc<Inner>,
    id: LaneId,
}

impl DevicePlace {
    /// Keeps the model in memory from now on, or does so no longer. One that sleeps returns.
    ///
    /// # Errors
    /// The bytes that it takes, and those that other pinned models leave, if that is less. Nothing has changed then.
    pub fn pin(&self, is_pinned: bool) -> Result<(), (u64, u64)> {
        let mut pinned = Ok(());
        self.device.change(|state, now| {
            let memory = state.memory_of(self.id)?;
            if !memory.pin(self.id, is_pinned) {
                let bytes = memory.shown(self.id).map_or(0, |(_, size)| size.bytes);
                pinned = Err((bytes, memory.beside_pinned(self.id)));
            } else if is_pinned {
                memory.call(self.id, now);
            }
            None
        });
        pinned
    }

    /// Brings the model into memory as if a request wanted it.
    pub fn call(&self) {
        self.device.change(|state, now| {
            state.memory_of(self.id)?.call(self.id, now);
            None
        });
    }

    /// Takes the model out of memory once what runs has ended; false if it is pinned or not there.
    pub fn send_away(&self) -> bool {
        let mut sent = false;
        self.device.change(|state, _| {
            sent = state.memory_of(self.id)?.send_away(self.id);
            None
        });
        if sent {
            let thread = self.device.lock().threads.iter().find(|(id, _)| *id == self.id).cloned();
            if let Some(thread) = thread.and_then(|(_, thread)| thread.upgrade()) {
                let _ = thread.inbox.put(Message::Swap(Swap::Leave));
            }
        }
        sent
    }

    /// Where the model is, in a word, and what it takes; `None` where all models stay in memory.
    #[must_use]
    pub fn shown(&self) -> Option<(&'static str, ModelMemory)> {
        self.device.lock().memory.as_ref().and_then(|memory| memory.shown(self.id))
    }

    /// Blocks while the model is about to leave.
    pub(crate) fn settle(&self) {
        let mut state = self.device.lock();
        let is_leaving = |memory: &DeviceMemory| {
            memory.shown(self.id).is_some_and(|(word, _)| word == "leaving")
        };
        while state.memory.as_ref().is_some_and(is_leaving) {
            state = self.device.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The engine thread's side of a `DevicePlace`. Leaves it when dropped.
#[derive(Debug)]
pub(crate) struct DeviceTurns {
    place: DevicePlace,
    /// Whether the memory knows that the engine has requests.
    is_busy: bool,
    swaps: bool,
}

impl DeviceTurns {
    /// `weight`: see `DeviceTime::join`. `memory`: what the model takes, and nothing yet if it `is_asleep`.
    ///
    /// # Errors
    /// `EngineError::Model` if the memory could never hold it.
    pub(crate) fn join(
        device: &SharedDevice,
        weight: u32,
        (memory, is_asleep): (ModelMemory, bool),
        thread: &Arc<Shared>,
    ) -> Result<Self, EngineError> {
        let device = Arc::clone(&device.inner);
        let mut state = device.lock();
        let id = state.time.join(weight);
        state.threads.push((id, Arc::downgrade(thread)));
        let now = device.clock.now();
        let (mut fits, mut left) = (true, 0);
        if let Some(all) = &mut state.memory {
            if is_asleep {
                all.join_asleep(id, memory, now);
            } else if !all.join(id, memory, now) {
                // It is in memory, for the moment.
                all.must_leave(id);
                let _ = thread.inbox.put(Message::Swap(Swap::Leave));
            }
            fits = all.can_hold(id);
            left = all.beside_pinned(id);
        }
        let swaps = state.memory.is_some();
        drop(state);
        let this = Self { place: DevicePlace { device, id }, is_busy: false, swaps };
        if fits {
            return Ok(this);
        }
        Err(EngineError::Model(format!(
            "device_memory_bytes: the model {} takes {} bytes with its KV pool, and pinned models leave {left}",
            thread.served.name, memory.bytes
        )))
    }

    pub(crate) fn place(&self) -> DevicePlace {
        self.place.clone()
    }

    /// Whether models make room for each other.
    pub(crate) fn swaps(&self) -> bool {
        self.swaps
    }

    /// Whether this engine may submit a step, and of how many rows. If not, `Message::Turn` comes.
    pub(crate) fn ask(&self) -> Turn {
        let device = &self.place.device;
        let mut state = device.lock();
        let now = device.clock.now();
        state.time.ask(self.place.id, now)
    }

    /// It has submitted a step.
    pub(crate) fn submitted(&self, num_rows: u32) {
        let mut state = self.place.device.lock();
        let now = self.place.device.clock.now();
        state.time.submitted(self.place.id, num_rows, now);
    }

    /// Its oldest step has ended.
    pub(crate) fn completed(&self) {
        self.place.device.change(|state, now| state.time.completed(self.place.id, now));
    }

    /// It has nothing to submit.
    pub(crate) fn pass(&self) {
        self.place.device.change(|state, now| state.time.pass(self.place.id, now));
    }

    /// A request has arrived.
    pub(crate) fn arrived(&mut self) {
        self.is_busy = true;
        self.tell(DeviceMemory::arrived);
    }

    /// It has no requests.
    pub(crate) fn idle(&mut self) {
        if std::mem::take(&mut self.is_busy) {
            self.tell(DeviceMemory::idle);
        }
    }

    /// It is in memory again, after so long.
    pub(crate) fn awake(&self, took: Micros) {
        self.tell(|memory, id, now| memory.awake(id, took, now));
    }

    /// It has given its memory back, or could not return; requests that it has want it again.
    pub(crate) fn asleep(&self) {
        let is_busy = self.is_busy;
        self.tell(|memory, id, now| {
            memory.asleep(id);
            if is_busy {
                memory.want(id, now);
            }
        });
    }

    /// Its KV pool could make use of so many bytes.
    pub(crate) fn want_pool(&self, bytes: u64) {
        self.tell(|memory, id, _| memory.want_pool(id, bytes));
    }

    /// Its KV pool has so many bytes.
    pub(crate) fn resized(&self, bytes: u64) {
        self.tell(|memory, id, now| memory.resized(id, bytes, now));
    }

    /// It was to leave, and could not.
    pub(crate) fn stayed(&self) {
        self.tell(|memory, id, _| memory.stayed(id));
    }

    fn tell(&self, change: impl FnOnce(&mut DeviceMemory, LaneId, Micros)) {
        if !self.swaps {
            return;
        }
        self.place.device.alter(true, |state, now| {
            change(state.memory.as_mut()?, self.place.id, now);
            None
        });
    }
}

impl Drop for DeviceTurns {
    fn drop(&mut self) {
        let id = self.place.id;
        self.place.device.change(|state, now| {
            state.threads.retain(|(other, _)| *other != id);
            if let Some(memory) = &mut state.memory {
                memory.leave(id);
            }
            state.time.leave(id, now)
        });
    }
}
