//! [4] When the next step is planned. Pure.
//!
//! A device stays busy if its next step is there when the one that runs ends. Planned much earlier, that step lacks
//! the prompts that come meanwhile, and they wait for one more step. So behind a long step the next one is planned
//! shortly before the running one should end. How long a step takes is learnt from those of about as many rows: the
//! shortest of the last few, because a step planned late costs the device more than one planned early costs a prompt.
//! (step_time.rs fits a line, which half of all steps undercut.)

use crate::{ExecutorShape, Micros};

/// How long steps take, those in flight, and how much time the host needs to plan one.
#[derive(Clone, Debug)]
pub struct Pacer {
    rows_of_bucket: u32,
    buckets: Vec<Bucket>,
    /// Rows and time of submission, oldest first.
    in_flight: Vec<(u32, Micros)>,
    /// When the last step ended.
    last_end: Micros,
    /// The next step is planned so long before the running one should end.
    lead: Micros,
    /// Steps since the device last waited for a plan.
    num_in_time: u32,
    /// The next step has been held back.
    is_held: bool,
    /// The next step was planned early, since the host might have been away.
    is_early: bool,
    /// The last pauses in which the host could not have planned; a step that was planned early for their sake counts as
    /// none. Otherwise one long pause would stay for ever, because none is measured while no step is held back.
    host: [Micros; HOST_PAUSES],
    num_pauses: usize,
}

impl Pacer {
    /// `None` where nothing is gained: one step in flight at a time, or a device without a pause of its own.
    #[must_use]
    pub fn new(shape: &ExecutorShape) -> Option<Self> {
        if shape.max_steps_in_flight < 2 || shape.pause == Micros(0) {
            return None;
        }
        let rows_of_bucket = shape.row_tile.div_ceil(2).max(1);
        let num_buckets = shape.max_num_batched_tokens / rows_of_bucket + 1;
        Some(Self {
            rows_of_bucket,
            buckets: vec![Bucket::default(); num_buckets as usize],
            in_flight: Vec::with_capacity(shape.max_steps_in_flight as usize),
            last_end: Micros(0),
            lead: LEAST_LEAD,
            num_in_time: 0,
            is_held: false,
            is_early: false,
            host: [Micros(0); HOST_PAUSES],
            num_pauses: 0,
        })
    }

    /// A step of so many rows has been submitted.
    pub fn submitted(&mut self, num_rows: u32, now: Micros) {
        self.is_held = false;
        self.in_flight.push((num_rows, now));
    }

    /// The oldest step has ended.
    pub fn completed(&mut self, now: Micros) {
        if self.in_flight.is_empty() {
            return;
        }
        let (num_rows, submitted) = self.in_flight.remove(0);
        let began = self.last_end.max(submitted);
        let took = Micros(now.0.saturating_sub(began.0));
        self.last_end = now;
        if let Some(bucket) = self.bucket(num_rows) {
            self.buckets[bucket].observe(took);
        }
        if self.in_flight.is_empty() && self.is_held {
            self.lead = Micros((self.lead.0 + MORE_LEAD.0).min(MOST_LEAD.0));
            self.num_in_time = 0;
        } else {
            self.num_in_time += 1;
            if self.num_in_time >= CALM_STEPS {
                self.num_in_time = 0;
                self.lead = Micros((self.lead.0 - LESS_LEAD.0).max(LEAST_LEAD.0));
            }
        }
        self.is_held = false;
        if std::mem::take(&mut self.is_early) {
            self.was_away(Micros(0));
        }
    }

    /// The oldest step was not run to its end, so that nothing is learnt from it.
    pub fn failed(&mut self, now: Micros) {
        if !self.in_flight.is_empty() {
            self.in_flight.remove(0);
        }
        self.last_end = now;
        self.is_held = false;
    }

    /// The host was busy with something else for so long after it had held a step back.
    pub fn was_away(&mut self, took: Micros) {
        self.host[self.num_pauses % HOST_PAUSES] = took;
        self.num_pauses += 1;
    }

    /// When the next step should be planned; `None` if at once.
    pub fn hold(&mut self, now: Micros) -> Option<Micros> {
        let at = self.plan_at().filter(|&at| at > now);
        // A host that is about to be away for longer than that must plan first.
        let away = self.host.iter().max().map_or(0, |longest| longest.0 + longest.0 / 2);
        let held = at.filter(|at| self.is_held || now.0 + away < at.0);
        self.is_early |= at.is_some() && held.is_none();
        self.is_held = held.is_some();
        held
    }

    fn plan_at(&self) -> Option<Micros> {
        let &[(num_rows, submitted)] = self.in_flight.as_slice() else { return None };
        let took = self.buckets[self.bucket(num_rows)?].shortest()?;
        let began = self.last_end.max(submitted);
        (took >= SHORTEST_STEP).then(|| Micros(began.0 + took.0.saturating_sub(self.lead.0)))
    }

    fn bucket(&self, num_rows: u32) -> Option<usize> {
        let bucket = (num_rows / self.rows_of_bucket) as usize;
        (bucket < self.buckets.len()).then_some(bucket)
    }
}

/// The last steps of about as many rows.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    last: [Micros; KEPT_STEPS],
    num_seen: usize,
}

impl Bucket {
    fn observe(&mut self, took: Micros) {
        self.last[self.num_seen % KEPT_STEPS] = took;
        self.num_seen += 1;
    }

    /// `None` before there are a few.
    fn shortest(&self) -> Option<Micros> {
        let seen = &self.last[..self.num_seen.min(KEPT_STEPS)];
        if seen.len() < LEAST_SEEN { None } else { seen.iter().min().copied() }
    }
}

/// Of a bucket.
const KEPT_STEPS: usize = 8;
/// Of these, before they say something.
const LEAST_SEEN: usize = 2;
/// A shorter step is no wait, and a timer for each would cost the host more than it gives.
const SHORTEST_STEP: Micros = Micros(8_000);
/// Waking up, planning and submitting take a host some tenths of a millisecond.
const LEAST_LEAD: Micros = Micros(1_500);
const MOST_LEAD: Micros = Micros(12_000);
/// After the device has waited for a plan.
const MORE_LEAD: Micros = Micros(1_000);
/// After `CALM_STEPS` steps in time.
const LESS_LEAD: Micros = Micros(100);
const CALM_STEPS: u32 = 64;
/// Pauses of the host that count.
const HOST_PAUSES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor_shape::of_an_h200 as shape;

    /// A pacer that has seen steps of 400 rows of these lengths one after the other, and the time now.
    fn seen(millis: &[u64]) -> (Pacer, Micros) {
        let mut pacer = Pacer::new(&shape()).unwrap();
        let mut now = Micros(1_000_000);
        for each in millis {
            pacer.submitted(400, now);
            now.0 += each * 1000;
            pacer.completed(now);
        }
        (pacer, now)
    }

    #[test]
    fn the_next_step_is_planned_shortly_before_the_running_one_should_end() {
        let (mut pacer, start) = seen(&[20, 21, 22]);
        pacer.submitted(410, start);
        let at = Micros(start.0 + 20_000 - LEAST_LEAD.0);
        assert_eq!(pacer.hold(start), Some(at), "the shortest counts");
        assert_eq!(pacer.hold(Micros(at.0 - 1)), Some(at));
        assert_eq!(pacer.hold(at), None);
    }

    #[test]
    fn a_step_behind_another_begins_when_that_one_ends() {
        let (mut pacer, start) = seen(&[20, 20]);
        pacer.submitted(400, start);
        pacer.submitted(400, Micros(start.0 + 18_500));
        assert_eq!(pacer.hold(start), None, "two are in flight");
        let end = Micros(start.0 + 20_000);
        pacer.completed(end);
        assert_eq!(pacer.hold(end), Some(Micros(end.0 + 20_000 - LEAST_LEAD.0)));
    }

    #[test]
    fn steps_of_unknown_length_and_short_ones_are_not_waited_for() {
        let (mut pacer, now) = seen(&[20, 20]);
        pacer.submitted(1000, now);
        assert_eq!(pacer.hold(now), None, "no step of a thousand rows has ended");
        let (mut pacer, now) = seen(&[5, 5, 5]);
        pacer.submitted(400, now);
        assert_eq!(pacer.hold(now), None, "the wait would be short");
        let (mut pacer, now) = seen(&[20]);
        pacer.submitted(400, now);
        assert_eq!(pacer.hold(now), None, "one is too few to know");
        let (mut pacer, now) = seen(&[20, 20]);
        pacer.submitted(5000, now);
        assert_eq!(pacer.hold(now), None, "beyond the shape");
    }

    #[test]
    fn a_device_that_had_to_wait_gets_its_plans_earlier_for_some_time() {
        let (mut pacer, mut now) = seen(&[20, 20]);
        let lead = |pacer: &mut Pacer, now: Micros| {
            pacer.submitted(400, now);
            now.0 + 20_000 - pacer.hold(now).unwrap().0
        };
        assert_eq!(lead(&mut pacer, now), LEAST_LEAD.0);
        // It ends while the next one is still held back.
        now.0 += 20_000;
        pacer.completed(now);
        assert_eq!(lead(&mut pacer, now), LEAST_LEAD.0 + MORE_LEAD.0);
        // The next one comes in time.
        now.0 += 19_000;
        pacer.submitted(400, now);
        now.0 += 1000;
        pacer.completed(now);
        now.0 += 20_000;
        pacer.completed(now);
        for _ in 0..CALM_STEPS * 10 {
            pacer.submitted(400, now);
            now.0 += 20_000;
            pacer.completed(now);
        }
        assert_eq!(lead(&mut pacer, now), LEAST_LEAD.0);
    }

    #[test]
    fn a_host_with_much_to_do_plans_first() {
        let (mut pacer, now) = seen(&[20, 20]);
        pacer.was_away(Micros(15_000));
        pacer.submitted(400, now);
        assert_eq!(pacer.hold(now), None);
        let (mut pacer, now) = seen(&[40, 40]);
        pacer.was_away(Micros(15_000));
        pacer.submitted(400, now);
        let at = pacer.hold(now).unwrap();
        // It is back.
        assert_eq!(pacer.hold(Micros(now.0 + 30_000)), Some(at));
        for _ in 0..HOST_PAUSES {
            pacer.was_away(Micros(100));
        }
        let (mut pacer, now) = (pacer, Micros(now.0 + 40_000));
        pacer.completed(now);
        pacer.submitted(400, now);
        assert!(pacer.hold(now).is_some(), "long ago");
    }

    #[test]
    fn one_long_pause_of_the_host_is_forgotten_though_no_step_is_held_after_it() {
        let (mut pacer, mut now) = seen(&[20, 20]);
        pacer.was_away(Micros(500_000));
        for _ in 0..HOST_PAUSES {
            pacer.submitted(400, now);
            assert_eq!(pacer.hold(now), None);
            now.0 += 20_000;
            pacer.completed(now);
        }
        pacer.submitted(400, now);
        assert_eq!(pacer.hold(now), Some(Micros(now.0 + 20_000 - LEAST_LEAD.0)));
    }

    #[test]
    fn a_failed_step_teaches_nothing() {
        let (mut pacer, now) = seen(&[20, 20]);
        pacer.submitted(400, now);
        pacer.failed(Micros(now.0 + 1));
        let now = Micros(now.0 + 10);
        pacer.submitted(400, now);
        assert_eq!(pacer.hold(now), Some(Micros(now.0 + 20_000 - LEAST_LEAD.0)));
    }

    #[test]
    fn devices_without_a_pause_or_a_second_step_are_not_paced() {
        assert!(Pacer::new(&ExecutorShape { pause: Micros(0), ..shape() }).is_none());
        assert!(Pacer::new(&ExecutorShape { max_steps_in_flight: 1, ..shape() }).is_none());
    }
}
