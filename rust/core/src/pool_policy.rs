//! KV pools of awake models that grow and shrink while the models serve. Plain data, like device_memory.rs.
//!
//! Each pool has a share that its model can count on. A model that could use more gets memory that nobody has, then
//! what idle models do not use of their shares. A model with less than its share gets it back at the expense of
//! those with more than theirs, whose running requests are preempted if need be; never below their own share.

use crate::device_memory::{DeviceMemory, Model, Move, Place};
use crate::device_pool::Resizes;
use crate::{LaneId, Micros};

impl DeviceMemory {
    /// The model would make use of a pool of so many bytes; 0 if what it has is enough.
    pub fn want_pool(&mut self, id: LaneId, bytes: u64) {
        self.model(id).pool.wants = bytes;
    }

    /// The model's pool has this size now. It may differ from what `next` said.
    pub fn resized(&mut self, id: LaneId, bytes: u64, now: Micros) {
        let pool = &mut self.model(id).pool;
        let is_refused = match pool.resizes {
            Resizes::Grows => bytes < pool.bytes,
            Resizes::Shrinks(_) => bytes >= pool.bytes,
            Resizes::No => false,
        };
        if is_refused {
            pool.again_at = Micros(now.0 + RETRY.0);
        }
        pool.bytes = bytes;
        pool.resizes = Resizes::No;
    }

    /// Bytes that the model's pool has; none if it has left.
    #[must_use]
    pub fn pool_bytes(&self, id: LaneId) -> Option<u64> {
        self.models.iter().find(|(other, _)| *other == id).map(|(_, model)| model.pool.bytes)
    }

    /// The next pool to change. `someone_returns`: a model waits for memory to return to.
    pub(crate) fn next_resize(&mut self, someone_returns: bool, now: Micros) -> Option<Move> {
        let wanting = |model: &Model| model.wants_pool() && model.pool.again_at <= now;
        let owner =
            self.find(|model| wanting(model) && model.pool.surplus() == 0 && model.lacks_share());
        if let Some(id) = owner {
            let pool = &self.model(id).pool;
            let target = pool.whole(pool.wants).min(pool.memory.share);
            let missing = target.saturating_sub(pool.bytes);
            if missing > 0 {
                let untaken = self.untaken();
                return match missing > untaken {
                    true => self.reclaim(missing - untaken, Some(id), now),
                    false => Some(self.grow(id, target)),
                };
            }
        }
        if someone_returns {
            return None;
        }
        let borrower = self.find(|model| wanting(model) && !model.lacks_share())?;
        let untaken = self.untaken();
        let pool = &self.model(borrower).pool;
        let missing = pool.whole(pool.wants).saturating_sub(pool.bytes);
        let (bytes, piece) = (pool.bytes, pool.memory.piece.max(1));
        if missing > untaken
            && let Some(lent) = self.lend(missing - untaken, borrower, now)
        {
            return Some(lent);
        }
        let given = missing.min(untaken / piece * piece);
        // While a lender shrinks, more is about to come.
        let waits = missing > untaken && self.shrinking() > 0;
        (given > 0 && !waits).then(|| self.grow(borrower, bytes + given))
    }

    /// Takes back what models have beyond their shares, then what idle ones do not use. Nothing while enough is on
    /// its way.
    pub(crate) fn reclaim(
        &mut self,
        missing: u64,
        who: Option<LaneId>,
        now: Micros,
    ) -> Option<Move> {
        let coming = self.shrinking();
        if coming >= missing {
            return None;
        }
        let missing = missing - coming;
        let rich = |model: &Model| model.may_shrink(now) && model.pool.surplus() > 0;
        let rich = self.models.iter().filter(|(id, model)| Some(*id) != who && rich(model));
        let richest = rich.max_by_key(|(_, model)| model.pool.surplus()).map(|(id, _)| *id);
        match richest {
            Some(id) => {
                let pool = &self.model(id).pool;
                let least = pool.memory.share;
                Some(self.shrink(id, least, missing, true))
            }
            None => self.idle_lender(who, now).map(|id| {
                let least = self.model(id).pool.memory.floor;
                self.shrink(id, least, missing, false)
            }),
        }
    }

    /// An idle model makes room for `borrower`.
    fn lend(&mut self, missing: u64, borrower: LaneId, now: Micros) -> Option<Move> {
        let missing = missing.saturating_sub(self.shrinking());
        let id = self.idle_lender(Some(borrower), now).filter(|_| missing > 0)?;
        let least = self.model(id).pool.memory.floor;
        Some(self.shrink(id, least, missing, false))
    }

    /// The model that has been idle for longest, of those that keep more than they need.
    fn idle_lender(&self, not: Option<LaneId>, now: Micros) -> Option<LaneId> {
        let lends = |model: &Model| {
            let is_idle = !model.is_busy && now.0.saturating_sub(model.idle_since.0) >= IDLE.0;
            is_idle && model.may_shrink(now) && model.pool.bytes > model.pool.memory.floor
        };
        let lenders = self.models.iter().filter(|(id, model)| Some(*id) != not && lends(model));
        lenders.min_by_key(|(_, model)| model.idle_since).map(|(id, _)| *id)
    }

    fn grow(&mut self, id: LaneId, bytes: u64) -> Move {
        let pool = &mut self.model(id).pool;
        (pool.bytes, pool.resizes) = (bytes, Resizes::Grows);
        Move::Resize { id, bytes, preempts: false }
    }

    /// Makes the pool smaller by `missing` in whole pieces, not below `least`.
    fn shrink(&mut self, id: LaneId, least: u64, missing: u64, preempts: bool) -> Move {
        let pool = &mut self.model(id).pool;
        let given = missing.next_multiple_of(pool.memory.piece.max(1));
        let bytes = pool.bytes.saturating_sub(given).max(least);
        pool.resizes = Resizes::Shrinks(pool.bytes - bytes);
        Move::Resize { id, bytes, preempts }
    }

    /// Bytes that are on their way back.
    fn shrinking(&self) -> u64 {
        let of = |model: &Model| match model.pool.resizes {
            Resizes::Shrinks(bytes) => bytes,
            Resizes::No | Resizes::Grows => 0,
        };
        self.models.iter().map(|(_, model)| of(model)).sum()
    }

    fn find(&self, is_it: impl Fn(&Model) -> bool) -> Option<LaneId> {
        self.models.iter().find(|(_, model)| is_it(model)).map(|(id, _)| *id)
    }
}

impl Model {
    /// It is awake, and its pool has the size that it is to have.
    fn rests(&self) -> bool {
        self.place == Place::Awake && self.pool.resizes == Resizes::No
    }

    fn may_shrink(&self, now: Micros) -> bool {
        self.rests() && self.pool.again_at <= now
    }

    /// Whether its pool could use more and may have it.
    pub(crate) fn wants_pool(&self) -> bool {
        self.is_busy && self.rests() && self.pool.whole(self.pool.wants) > self.pool.bytes
    }

    fn lacks_share(&self) -> bool {
        self.pool.bytes < self.pool.memory.share
    }
}

/// A model lends nothing before it has been idle for so long.
const IDLE: Micros = Micros(1_000_000);
/// How long a pool keeps its size after the device has refused to change it.
const RETRY: Micros = Micros(1_000_000);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_pool::PoolMemory;
    use crate::{DeviceTime, ModelMemory};

    /// Weights of 10 bytes and a pool of 20, which may grow to 100, shrink to 4 and does so by 2.
    const SIZE: ModelMemory = ModelMemory {
        bytes: 30,
        pool: PoolMemory { share: 20, most: 100, floor: 4, piece: 2 },
        return_time: Micros(1000),
        is_pinned: false,
    };
    const LATER: Micros = Micros(5_000_000);

    fn models<const N: usize>(capacity: u64) -> (DeviceMemory, [LaneId; N]) {
        let mut time = DeviceTime::default();
        let ids = [(); N].map(|()| time.join(1));
        let mut memory = DeviceMemory::new(capacity);
        for id in ids {
            memory.join(id, SIZE, Micros(0));
        }
        (memory, ids)
    }

    fn resize(id: LaneId, bytes: u64, preempts: bool) -> Option<Move> {
        Some(Move::Resize { id, bytes, preempts })
    }

    /// Does at once what the memory asks for.
    fn settle(memory: &mut DeviceMemory, now: Micros) -> Vec<Move> {
        let mut moves = Vec::new();
        while let Some(next) = memory.next(now) {
            match next {
                Move::Resize { id, bytes, .. } => memory.resized(id, bytes, now),
                Move::Sleep(id) => memory.asleep(id),
                Move::Wake(id) => memory.awake(id, Micros(1000), now),
            }
            moves.push(next);
            let awake = memory.models.iter().filter(|(_, model)| model.place != Place::Asleep);
            assert!(awake.map(|(_, model)| model.taken()).sum::<u64>() <= memory.capacity);
        }
        moves
    }

    #[test]
    fn a_busy_model_takes_what_nobody_has_and_then_what_idle_models_leave() {
        let (mut memory, [busy, idle]) = models(70);
        memory.arrived(busy, LATER);
        memory.want_pool(busy, 25);
        assert_eq!(memory.next(LATER), resize(busy, 26, false));
        assert_eq!(memory.next(LATER), None, "it grows");
        memory.resized(busy, 26, LATER);
        memory.want_pool(busy, 44);
        assert_eq!(memory.next(LATER), resize(idle, 6, false), "18 bytes, and 4 are nobody's");
        assert_eq!(memory.next(LATER), None, "more is about to come");
        memory.resized(idle, 6, LATER);
        assert_eq!(memory.next(LATER), resize(busy, 44, false));
        memory.resized(busy, 44, LATER);
        memory.want_pool(busy, 90);
        assert_eq!(
            settle(&mut memory, LATER),
            [
                Move::Resize { id: idle, bytes: 4, preempts: false },
                Move::Resize { id: busy, bytes: 46, preempts: false },
            ]
        );
        assert_eq!(memory.next(LATER), None, "there is no more to be had");
        assert!(memory.look_again(LATER).is_some());
    }

    #[test]
    fn an_owner_gets_its_share_back_from_the_one_that_has_more_than_its_own() {
        let (mut memory, [busy, owner]) = models(60);
        memory.arrived(busy, LATER);
        memory.want_pool(busy, 100);
        settle(&mut memory, LATER);
        assert_eq!((memory.pool_bytes(busy), memory.pool_bytes(owner)), (Some(36), Some(4)));
        memory.arrived(owner, LATER);
        memory.want_pool(owner, 50);
        assert_eq!(memory.next(LATER), resize(busy, 20, true));
        memory.resized(busy, 20, LATER);
        assert_eq!(memory.next(LATER), resize(owner, 20, false), "its share and no more");
        memory.resized(owner, 20, LATER);
        assert_eq!(memory.next(LATER), None, "both are busy and have their shares");
        memory.idle(busy, LATER);
        let soon = Micros(LATER.0 + IDLE.0 - 1);
        assert_eq!(memory.next(soon), None, "it may be asked again soon");
        assert_eq!(memory.next(Micros(soon.0 + 1)), resize(busy, 4, false));
    }

    #[test]
    fn a_small_need_of_an_owner_takes_no_more_than_that() {
        let (mut memory, [busy, owner]) = models(60);
        memory.arrived(busy, LATER);
        memory.want_pool(busy, 100);
        settle(&mut memory, LATER);
        memory.arrived(owner, LATER);
        memory.want_pool(owner, 7);
        assert_eq!(memory.next(LATER), resize(busy, 32, true));
        memory.resized(busy, 32, LATER);
        assert_eq!(memory.next(LATER), resize(owner, 8, false));
    }

    #[test]
    fn a_model_that_returns_gets_back_what_others_have_beyond_their_shares() {
        let (mut memory, [busy, away]) = models(60);
        assert!(memory.send_away(away));
        memory.asleep(away);
        memory.arrived(busy, LATER);
        memory.want_pool(busy, 100);
        assert_eq!(
            settle(&mut memory, LATER),
            [Move::Resize { id: busy, bytes: 50, preempts: false }]
        );
        memory.arrived(away, LATER);
        assert_eq!(memory.next(LATER), resize(busy, 20, true));
        assert_eq!(memory.next(LATER), None);
        memory.resized(busy, 20, LATER);
        assert_eq!(memory.next(LATER), Some(Move::Wake(away)));
        memory.awake(away, Micros(1000), LATER);
        assert_eq!(memory.next(LATER), None);
    }

    #[test]
    fn a_pool_waits_after_the_device_has_refused_what_the_sums_allow() {
        let (mut memory, [busy]) = models(70);
        memory.arrived(busy, LATER);
        memory.want_pool(busy, 40);
        assert_eq!(memory.next(LATER), resize(busy, 40, false));
        memory.resized(busy, 30, LATER);
        assert_eq!(memory.next(LATER), None);
        let again = Micros(LATER.0 + RETRY.0);
        assert_eq!(memory.next(again), resize(busy, 40, false));
    }

    /// Ten models that come and go at random: what they have together always fits, and whoever waits alone
    /// gets its share.
    #[test]
    fn what_pools_have_always_fits_and_a_share_is_always_there_for_its_owner() {
        let (mut memory, ids) = models::<10>(300);
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut now = LATER;
        for _ in 0..2000 {
            now.0 += random(800_000);
            let id = ids[random(10) as usize];
            if random(3) == 0 {
                memory.idle(id, now);
            } else {
                memory.arrived(id, now);
                memory.want_pool(id, random(120));
            }
            settle(&mut memory, now);
            for (id, model) in memory.models.iter().filter(|(_, model)| model.is_busy) {
                let entitled = model.pool.whole(model.pool.wants).min(model.pool.memory.share);
                assert!(model.pool.bytes >= entitled, "{id:?}: {model:?}");
            }
        }
    }
}
