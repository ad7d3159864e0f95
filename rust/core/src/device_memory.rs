//! Which of several models have their weights in a device's memory, where not all of them fit. Plain
//! data; time comes in as an argument. The caller does what `next` says and reports when it is done.
//!
//! ```text
//! asleep -> waking -> awake -> leaving -> asleep
//! ```
//! A model returns when a request wants it. Room is made by the idle model whose absence costs least: how
//! often it is wanted, times how long it takes to return, for each byte. If idle models are not enough,
//! a busy one finishes what runs and goes. A model that has returned stays for a multiple of the time that its
//! return took, which bounds the share of time that moving weights can take.
//!
//! All that decides which models are awake counts weights and each pool's share. pool_policy.rs lets pools of awake
//! models grow beyond that and shrink below.

use crate::device_pool::{Pool, PoolMemory};
use crate::{LaneId, Micros};

/// A device's memory and the models that share it.
#[derive(Debug)]
pub struct DeviceMemory {
    pub(crate) capacity: u64,
    pub(crate) models: Vec<(LaneId, Model)>,
}

/// What a model is to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelMemory {
    /// Bytes that it takes while it is not asleep: weights and the pool's share.
    pub bytes: u64,
    /// Its KV pool.
    pub pool: PoolMemory,
    /// How long its return takes, as far as is known before the first.
    pub return_time: Micros,
    /// It never makes room for others.
    pub is_pinned: bool,
}

/// What the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Bring the model into memory; `awake` or `asleep` follows.
    Wake(LaneId),
    /// Take the model out of memory once what runs has ended; `asleep` follows.
    Sleep(LaneId),
    /// Give the model's pool `bytes`; `resized` follows.
    Resize {
        /// Which.
        id: LaneId,
        /// What it then has, about.
        bytes: u64,
        /// If it gets smaller: running requests that are in the way are preempted. Otherwise it shrinks as far as
        /// nothing runs there.
        preempts: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Model {
    size: ModelMemory,
    pub(crate) place: Place,
    pub(crate) pool: Pool,
    /// It has requests.
    pub(crate) is_busy: bool,
    /// Since when it has none.
    pub(crate) idle_since: Micros,
    /// Since when requests wait for its return.
    wanted_since: Option<Micros>,
    /// When it last became awake.
    awake_since: Micros,
    /// Requests of late: each counts e^(-age / `MEMORY`).
    heat: f64,
    heat_at: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Asleep,
    Waking,
    Awake,
    Leaving,
}

impl DeviceMemory {
    /// Memory of so many bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { capacity, models: Vec::new() }
    }

    /// Adds a model. It is awake if there is room and asleep otherwise; returns which.
    pub fn join(&mut self, id: LaneId, size: ModelMemory, now: Micros) -> bool {
        let fits = size.bytes <= self.free();
        self.add(id, size, if fits { Place::Awake } else { Place::Asleep }, now);
        fits
    }

    /// Adds a model that nobody has read into memory yet; it comes when it is wanted.
    pub fn join_asleep(&mut self, id: LaneId, size: ModelMemory, now: Micros) {
        self.add(id, size, Place::Asleep, now);
    }

    fn add(&mut self, id: LaneId, size: ModelMemory, place: Place, now: Micros) {
        self.models.push((
            id,
            Model {
                size,
                place,
                pool: Pool::new(size.pool),
                is_busy: false,
                idle_since: now,
                wanted_since: None,
                awake_since: now,
                heat: 0.0,
                heat_at: now,
            },
        ));
    }

    /// Removes a model.
    pub fn leave(&mut self, id: LaneId) {
        self.models.retain(|(other, _)| *other != id);
    }

    /// A request for the model has arrived; it has requests from now on.
    pub fn arrived(&mut self, id: LaneId, now: Micros) {
        let model = self.model(id);
        model.heat = model.heat_now(now) + 1.0;
        model.heat_at = now;
        self.want(id, now);
    }

    /// The model has requests, and wants to be awake for them.
    pub fn want(&mut self, id: LaneId, now: Micros) {
        let model = self.model(id);
        model.is_busy = true;
        if model.place != Place::Awake {
            model.wanted_since.get_or_insert(now);
        }
    }

    /// The model has no requests any more.
    pub fn idle(&mut self, id: LaneId, now: Micros) {
        let model = self.model(id);
        if std::mem::take(&mut model.is_busy) {
            model.idle_since = now;
        }
        model.wanted_since = None;
    }

    /// The model was to leave, and could not.
    pub fn stayed(&mut self, id: LaneId) {
        let model = self.model(id);
        model.place = Place::Awake;
        model.wanted_since = None;
    }

    /// The model has more than there is room for, and must leave; `asleep` follows.
    pub fn must_leave(&mut self, id: LaneId) {
        self.model(id).place = Place::Leaving;
    }

    /// The model is wanted though it has no request.
    pub fn call(&mut self, id: LaneId, now: Micros) {
        let model = self.model(id);
        if model.place != Place::Awake {
            model.wanted_since.get_or_insert(now);
        }
    }

    /// Whether the model leaves now because somebody asks for that, as if `next` had said so. One that is
    /// pinned or not awake does not.
    pub fn send_away(&mut self, id: LaneId) -> bool {
        let model = self.model(id);
        let leaves = model.place == Place::Awake && !model.size.is_pinned;
        if leaves {
            model.place = Place::Leaving;
        }
        leaves
    }

    /// A model whose requests have waited for so long that they must end: nobody waits for its return from
    /// now on. Call it until it returns nothing.
    pub fn overdue(&mut self, patience: Micros, now: Micros) -> Option<LaneId> {
        let waited = |since: Micros| now.0.saturating_sub(since.0);
        let is_overdue =
            |model: &Model| model.is_wanted() && model.wanted_since.map(waited) >= Some(patience.0);
        let (id, model) = self.models.iter_mut().find(|(_, model)| is_overdue(model))?;
        model.wanted_since = None;
        Some(*id)
    }

    /// Where the model is, in a word for operators, and what it is to the memory; nothing of one that has
    /// left.
    #[must_use]
    pub fn shown(&self, id: LaneId) -> Option<(&'static str, ModelMemory)> {
        let (_, model) = self.models.iter().find(|(other, _)| *other == id)?;
        let word = match model.place {
            Place::Asleep => "asleep",
            Place::Waking => "waking",
            Place::Awake => "awake",
            Place::Leaving => "leaving",
        };
        Some((word, model.size))
    }

    /// Whether the model is pinned from now on. False if the pinned ones would not fit together; then nothing changes.
    pub fn pin(&mut self, id: LaneId, is_pinned: bool) -> bool {
        let can = !is_pinned || self.of(id).size.bytes <= self.beside_pinned(id);
        if can {
            self.model(id).size.is_pinned = is_pinned;
        }
        can
    }

    /// What pinned models other than this one leave, whether they are awake or not.
    #[must_use]
    pub fn beside_pinned(&self, id: LaneId) -> u64 {
        let others =
            self.models.iter().filter(|(other, model)| *other != id && model.size.is_pinned);
        self.capacity.saturating_sub(others.map(|(_, model)| model.size.bytes).sum())
    }

    /// The model is in memory; its return took so long.
    pub fn awake(&mut self, id: LaneId, took: Micros, now: Micros) {
        let model = self.model(id);
        model.place = Place::Awake;
        model.wanted_since = None;
        model.awake_since = now;
        model.size.return_time = took;
    }

    /// The model's memory has been given back, or its return has failed; then it is not wanted any more, or it would
    /// be tried again at once and without end.
    pub fn asleep(&mut self, id: LaneId) {
        let model = self.model(id);
        if model.place == Place::Waking {
            model.wanted_since = None;
        }
        model.place = Place::Asleep;
        model.pool.leave();
    }

    /// The next thing to do, which counts as begun; call it until it returns nothing, after every change
    /// and at the time that `look_again` says.
    pub fn next(&mut self, now: Micros) -> Option<Move> {
        let wanted = self.next_wanted(now);
        let next = wanted.and_then(|wanted| self.next_for(wanted, now));
        // A model that is to return comes before pools that would like to have more than their share.
        next.or_else(|| self.next_resize(wanted.is_some(), now))
    }

    /// What brings the wanted model nearer to its return.
    fn next_for(&mut self, wanted: LaneId, now: Micros) -> Option<Move> {
        let need = self.of(wanted).size.bytes;
        if need <= self.free() {
            if self.models.iter().any(|(_, model)| model.place == Place::Waking) {
                // Two at once would both take longer.
                return None;
            }
            let taken = self.of(wanted).taken();
            if taken > self.untaken() {
                return self.reclaim(taken - self.untaken(), None, now);
            }
            self.model(wanted).place = Place::Waking;
            return Some(Move::Wake(wanted));
        }
        let leaving: u64 = self.bytes_of(|model| model.place == Place::Leaving);
        if need <= self.free() + leaving {
            return None;
        }
        let victim = self.victim(wanted, now)?;
        self.model(victim).place = Place::Leaving;
        Some(Move::Sleep(victim))
    }

    /// When `next` may find something else though nothing has changed; absent where it cannot.
    #[must_use]
    pub fn look_again(&self, now: Micros) -> Option<Micros> {
        let waits = |model: &Model| model.is_wanted() || model.wants_pool();
        self.models.iter().any(|(_, model)| waits(model)).then_some(Micros(now.0 + TICK.0))
    }

    /// Whether the model could be awake if all others made room.
    #[must_use]
    pub fn can_hold(&self, id: LaneId) -> bool {
        self.of(id).size.bytes <= self.beside_pinned(id)
    }

    /// The wanted model that has waited longest in proportion to the time that its return takes. One for
    /// which there could be no room is passed over.
    fn next_wanted(&self, now: Micros) -> Option<LaneId> {
        let wanted =
            self.models.iter().filter(|(id, model)| model.is_wanted() && self.can_hold(*id));
        let urgency = |model: &Model| {
            let waited = now.0.saturating_sub(model.wanted_since.map_or(now.0, |since| since.0));
            waited as f64 / (model.size.return_time.0 as f64 + 1.0)
        };
        wanted.max_by(|(_, a), (_, b)| urgency(a).total_cmp(&urgency(b))).map(|(id, _)| *id)
    }

    /// The awake model that should make room for `wanted`.
    fn victim(&self, wanted: LaneId, now: Micros) -> Option<LaneId> {
        let since = self.of(wanted).wanted_since.unwrap_or(now);
        let is_late = now.0.saturating_sub(since.0) >= PATIENCE.0;
        let awake = self.models.iter().filter(|(_, model)| {
            let stay = if model.is_busy { BUSY_STAY } else { IDLE_STAY };
            let stayed = now.0.saturating_sub(model.awake_since.0);
            model.place == Place::Awake
                && !model.size.is_pinned
                && (!model.is_busy || is_late)
                && stayed >= stay * model.size.return_time.0
        });
        let cost = |model: &Model| {
            let returns = model.heat_now(now) * model.size.return_time.0 as f64;
            (model.is_busy, returns / (model.size.bytes as f64 + 1.0))
        };
        let least = awake.min_by(|(_, a), (_, b)| {
            let (a, b) = (cost(a), cost(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        least.map(|(id, _)| *id)
    }

    fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.bytes_of(|model| model.place != Place::Asleep))
    }

    /// Bytes that nobody has at this moment: what is lent counts as the borrower's.
    pub(crate) fn untaken(&self) -> u64 {
        let awake = self.models.iter().filter(|(_, model)| model.place != Place::Asleep);
        self.capacity.saturating_sub(awake.map(|(_, model)| model.taken()).sum())
    }

    fn bytes_of(&self, counts: impl Fn(&Model) -> bool) -> u64 {
        let counted = self.models.iter().filter(|(_, model)| counts(model));
        counted.map(|(_, model)| model.size.bytes).sum()
    }

    fn of(&self, id: LaneId) -> &Model {
        &self.models.iter().find(|(other, _)| *other == id).expect(GONE).1
    }

    pub(crate) fn model(&mut self, id: LaneId) -> &mut Model {
        &mut self.models.iter_mut().find(|(other, _)| *other == id).expect(GONE).1
    }
}

impl Model {
    /// Bytes that it has while it is not asleep.
    pub(crate) fn taken(&self) -> u64 {
        self.size.bytes - self.pool.memory.share.min(self.size.bytes) + self.pool.bytes
    }

    fn is_wanted(&self) -> bool {
        self.place == Place::Asleep && self.wanted_since.is_some()
    }

    fn heat_now(&self, now: Micros) -> f64 {
        self.heat * (-(now.0.saturating_sub(self.heat_at.0) as f64) / MEMORY.0 as f64).exp()
    }
}

/// How long a request counts as a sign of further ones.
const MEMORY: Micros = Micros(120_000_000);
/// An idle model stays for so many times the duration of its last return.
const IDLE_STAY: u64 = 1;
/// The same for one that has requests.
const BUSY_STAY: u64 = 4;
/// Busy models stay until a wanted one has waited for so long.
const PATIENCE: Micros = Micros(10_000_000);
/// How often waiting alone is looked at.
const TICK: Micros = Micros(50_000);
const GONE: &str = "a model that has left wants memory";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceTime;

    fn ids<const N: usize>() -> [LaneId; N] {
        let mut time = DeviceTime::default();
        [(); N].map(|()| time.join(1))
    }

    fn size(bytes: u64) -> ModelMemory {
        ModelMemory {
            bytes,
            pool: PoolMemory::default(),
            return_time: Micros(1000),
            is_pinned: false,
        }
    }

    const LATER: Micros = Micros(5_000_000);

    #[test]
    fn test_models_are_awake_from_the_start_as_far_as_they_fit() {
        let [a, b, c] = ids();
        let mut memory = DeviceMemory::new(10);
        assert!(memory.join(a, size(6), Micros(0)));
        assert!(!memory.join(b, size(5), Micros(0)));
        assert!(memory.join(c, size(4), Micros(0)), "a smaller one may still fit");
        assert_eq!(memory.next(Micros(0)), None, "nobody wants anything");
        assert_eq!(memory.look_again(Micros(0)), None);
    }

    #[test]
    fn test_a_wanted_model_waits_until_another_one_has_left() {
        let [a, b] = ids();
        let mut memory = DeviceMemory::new(10);
        memory.join(a, size(10), Micros(0));
        memory.join(b, size(10), Micros(0));
        memory.arrived(b, LATER);
        assert_eq!(memory.next(LATER), Some(Move::Sleep(a)));
        assert_eq!(memory.next(LATER), None, "it is leaving");
        memory.asleep(a);
        assert_eq!(memory.next(LATER), Some(Move::Wake(b)));
        assert_eq!(memory.next(LATER), None);
        memory.awake(b, Micros(500), LATER);
        assert_eq!(memory.next(LATER), None);
        memory.idle(b, LATER);
        memory.arrived(a, Micros(LATER.0 + 499));
        assert_eq!(memory.next(Micros(LATER.0 + 499)), None, "it has just returned");
        assert_eq!(memory.next(Micros(LATER.0 + 500)), Some(Move::Sleep(b)));
    }

    #[test]
    fn test_the_model_whose_absence_costs_least_leaves() {
        let [rare, often, pinned, new] = ids();
        let mut memory = DeviceMemory::new(30);
        memory.join(rare, size(10), Micros(0));
        memory.join(often, size(10), Micros(0));
        memory.join(pinned, ModelMemory { is_pinned: true, ..size(10) }, Micros(0));
        memory.join(new, size(10), Micros(0));
        for second in 1..10 {
            let now = Micros(second * 100_000);
            memory.arrived(often, now);
            memory.idle(often, now);
        }
        memory.arrived(rare, Micros(950_000));
        memory.idle(rare, Micros(960_000));
        memory.arrived(new, LATER);
        assert_eq!(memory.next(LATER), Some(Move::Sleep(rare)), "though it was used last");
        memory.asleep(rare);
        assert_eq!(memory.next(LATER), Some(Move::Wake(new)));
        memory.awake(new, Micros(1000), LATER);
        memory.pin(new, true);
        let late = Micros(LATER.0 + 20_000_000);
        memory.arrived(rare, late);
        assert_eq!(memory.next(late), Some(Move::Sleep(often)), "all others are pinned");
    }

    #[test]
    fn test_a_busy_model_makes_room_only_for_one_that_has_waited_long() {
        let [a, b] = ids();
        let mut memory = DeviceMemory::new(10);
        memory.join(a, size(10), Micros(0));
        memory.join(b, size(10), Micros(0));
        memory.arrived(a, LATER);
        memory.arrived(b, LATER);
        assert_eq!(memory.next(LATER), None);
        let again = memory.look_again(LATER).unwrap();
        assert!(again > LATER);
        assert_eq!(memory.next(Micros(LATER.0 + PATIENCE.0 - 1)), None);
        assert_eq!(memory.next(Micros(LATER.0 + PATIENCE.0)), Some(Move::Sleep(a)));
    }

    #[test]
    fn test_a_model_that_cannot_fit_keeps_nobody_from_returning() {
        let [pinned, small, large] = ids();
        let mut memory = DeviceMemory::new(10);
        memory.join(pinned, ModelMemory { is_pinned: true, ..size(6) }, Micros(0));
        memory.join(large, size(8), Micros(0));
        memory.join(small, size(4), Micros(0));
        assert!(!memory.can_hold(large) && memory.can_hold(small) && memory.can_hold(pinned));
        memory.arrived(large, LATER);
        assert_eq!(memory.next(LATER), None, "nobody leaves in vain");
        memory.leave(small);
        memory.join(small, size(5), Micros(0));
        memory.arrived(small, LATER);
        assert_eq!(memory.next(LATER), None, "it does not fit either");
        memory.leave(small);
        assert!(memory.join(small, size(4), LATER));
    }

    #[test]
    fn test_requests_wait_for_so_long_and_no_longer() {
        let [a, b] = ids();
        let mut memory = DeviceMemory::new(10);
        memory.join(a, ModelMemory { is_pinned: true, ..size(10) }, Micros(0));
        memory.join(b, size(10), Micros(0));
        memory.arrived(b, Micros(100));
        let limit = Micros(1000);
        assert_eq!(memory.overdue(limit, Micros(1099)), None);
        assert_eq!(memory.overdue(limit, Micros(1100)), Some(b));
        assert_eq!(memory.overdue(limit, Micros(1100)), None, "they end once");
        assert_eq!(memory.look_again(Micros(1100)), None);
    }

    #[test]
    fn test_an_operator_sends_models_away_and_calls_them() {
        let [a, b] = ids();
        let mut memory = DeviceMemory::new(20);
        memory.join(a, ModelMemory { is_pinned: true, ..size(10) }, Micros(0));
        memory.join(b, size(10), Micros(0));
        assert!(!memory.send_away(a), "it is pinned");
        assert!(memory.send_away(b));
        assert!(!memory.send_away(b), "it is leaving");
        assert_eq!(memory.shown(b).map(|(word, _)| word), Some("leaving"));
        memory.asleep(b);
        assert_eq!(memory.next(LATER), None);
        memory.call(b, LATER);
        assert_eq!(memory.next(LATER), Some(Move::Wake(b)));
        memory.awake(b, Micros(10), LATER);
        let size = ModelMemory { return_time: Micros(10), ..size(10) };
        assert_eq!(memory.shown(b), Some(("awake", size)));
        memory.leave(b);
        assert_eq!(memory.shown(b), None);
    }

    #[test]
    fn test_models_that_do_not_fit_together_cannot_all_be_pinned() {
        let [a, b, c] = ids();
        let mut memory = DeviceMemory::new(20);
        memory.join(a, ModelMemory { is_pinned: true, ..size(10) }, Micros(0));
        memory.join(b, size(8), Micros(0));
        memory.join(c, size(4), Micros(0));
        assert!(memory.pin(c, true), "it sleeps, and there could be room");
        assert!(!memory.pin(b, true), "10 + 4 + 8 of 20");
        assert_eq!(memory.beside_pinned(b), 6);
        assert!(!memory.can_hold(b), "not even for a moment");
        assert!(memory.pin(c, false));
        assert!(memory.pin(b, true) && memory.pin(b, true), "again changes nothing");
    }

    #[test]
    fn test_a_model_that_was_called_and_cannot_return_is_not_tried_again_by_itself() {
        let [a] = ids();
        let mut memory = DeviceMemory::new(10);
        memory.join_asleep(a, size(10), Micros(0));
        memory.call(a, LATER);
        assert_eq!(memory.next(LATER), Some(Move::Wake(a)));
        memory.asleep(a);
        assert_eq!((memory.next(LATER), memory.look_again(LATER)), (None, None));
        memory.call(a, LATER);
        assert_eq!(memory.next(LATER), Some(Move::Wake(a)), "unless it is called again");
    }

    #[test]
    fn test_a_model_that_is_loaded_on_request_takes_no_room_before() {
        let [a, b] = ids();
        let mut memory = DeviceMemory::new(10);
        memory.join_asleep(a, size(8), Micros(0));
        assert!(memory.join(b, size(6), Micros(0)), "there is room");
        assert_eq!(memory.next(LATER), None);
        memory.arrived(a, LATER);
        assert_eq!(memory.next(LATER), Some(Move::Sleep(b)));
        memory.asleep(b);
        assert_eq!(memory.next(LATER), Some(Move::Wake(a)));
    }

    #[test]
    fn test_a_failed_return_leaves_the_memory_free() {
        let [a, b] = ids();
        let mut memory = DeviceMemory::new(10);
        memory.join(a, size(10), Micros(0));
        memory.join(b, size(10), Micros(0));
        memory.arrived(b, LATER);
        assert_eq!(memory.next(LATER), Some(Move::Sleep(a)));
        memory.asleep(a);
        for _ in 0..2 {
            assert_eq!(memory.next(LATER), Some(Move::Wake(b)));
            memory.asleep(b);
            memory.idle(b, LATER);
            assert_eq!(memory.next(LATER), None, "its requests have failed");
            memory.arrived(b, LATER);
        }
    }
}
