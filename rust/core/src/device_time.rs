//! [4] Which of several models may run its next step on a device that they share. Plain data; time
//! comes in as an argument. One model holds the device at a time.
//!
//! Each model has used some *virtual time*: the time of its steps, divided by its weight. When the
//! holder's step ends and another model waits with less virtual time, that one is next, so that models
//! that always want the device get time in proportion to their weights, and one that wants it rarely
//! gets it at once. A model that has waited for `LATE` goes first whatever its weight.

use std::collections::VecDeque;

use crate::Micros;
use crate::step_time::StepTime;

/// One of the models that share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneId(usize);

/// The state of a shared device.
#[derive(Debug, Default)]
pub struct DeviceTime {
    lanes: Vec<Option<Lane>>,
    holder: Option<LaneId>,
}

/// What a model that asks for the device gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It may submit a step. While others have work, the step should have at most so many rows.
    Now(Option<u32>),
    /// It waits until another call returns its id.
    Later,
}

#[derive(Debug)]
struct Lane {
    weight: u64,
    /// Virtual time, in micros for a weight of 1.
    used_us: u64,
    /// It has asked and not passed since: it has work, even while its last step is looked at.
    is_busy: bool,
    /// Since when it waits.
    waits_since: Option<Micros>,
    /// Rows of the steps that it has submitted, the oldest first.
    in_flight: VecDeque<u32>,
    /// Since when its oldest step runs.
    busy_since: Micros,
    steps: StepTime,
}

impl DeviceTime {
    /// Adds a model; of two that always want the device, one of twice the weight gets twice the time.
    ///
    /// # Panics
    /// If the weight is 0.
    pub fn join(&mut self, weight: u32) -> LaneId {
        assert!(weight > 0, "a model without weight");
        let lane = Lane {
            weight: u64::from(weight),
            used_us: self.floor().unwrap_or(0),
            is_busy: false,
            waits_since: None,
            in_flight: VecDeque::new(),
            busy_since: Micros(0),
            steps: StepTime::default(),
        };
        let free = self.lanes.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        self.lanes[place] = Some(lane);
        LaneId(place)
    }

    /// Removes a model; its steps count as ended. Returns the model whose turn it is, if that changes.
    #[must_use]
    pub fn leave(&mut self, id: LaneId, now: Micros) -> Option<LaneId> {
        self.lanes[id.0] = None;
        if self.holder != Some(id) {
            return None;
        }
        self.holder = None;
        self.hand_over(now)
    }

    /// The model has a step to submit. Granted once; `submitted` or `pass` must follow.
    pub fn ask(&mut self, id: LaneId, now: Micros) -> Turn {
        let others_work = self.others_work(id);
        let may = match self.holder {
            None => true,
            // Where another model has work, it may get the device after this step.
            Some(holder) if holder == id => !others_work || self.lane(id).in_flight.is_empty(),
            Some(_) => false,
        };
        let floor = self.floor();
        let was_idle = !self.lane(id).is_busy;
        let lane = self.lane_mut(id);
        lane.is_busy = true;
        if was_idle {
            // Time that it did not want is not saved up.
            lane.used_us = lane.used_us.max(floor.unwrap_or(0));
        }
        if !may {
            lane.waits_since.get_or_insert(now);
            return Turn::Later;
        }
        lane.waits_since = None;
        self.holder = Some(id);
        let rows = self.lane(id).steps.rows_within(STEP_LIMIT).map(|rows| rows.max(ROWS_LEAST));
        Turn::Now(rows.filter(|_| others_work))
    }

    /// The model has submitted a step of so many rows, in the turn that `ask` gave.
    ///
    /// # Panics
    /// If it is not the model's turn.
    pub fn submitted(&mut self, id: LaneId, num_rows: u32, now: Micros) {
        assert_eq!(self.holder, Some(id), "a step out of turn");
        let lane = self.lane_mut(id);
        if lane.in_flight.is_empty() {
            lane.busy_since = now;
        }
        lane.in_flight.push_back(num_rows);
    }

    /// The model's oldest step has ended. Returns the model whose turn it is, if that changes; else the
    /// device stays reserved for this one until it asks or passes.
    ///
    /// # Panics
    /// If none of its steps was in flight.
    #[must_use]
    pub fn completed(&mut self, id: LaneId, now: Micros) -> Option<LaneId> {
        let lane = self.lane_mut(id);
        let num_rows = lane.in_flight.pop_front();
        assert!(num_rows.is_some(), "a step ended that was not submitted");
        let took = Micros(now.0.saturating_sub(lane.busy_since.0));
        lane.busy_since = now;
        lane.used_us += took.0 / lane.weight;
        lane.steps.observe(num_rows.unwrap_or(0), took);
        if !lane.in_flight.is_empty() {
            return None;
        }
        lane.waits_since = None;
        let used_us = lane.used_us;
        let next = self.next(now)?;
        let other = self.lane(next);
        if other.used_us > used_us && !is_late(other, now) {
            return None;
        }
        self.hand_over(now)
    }

    /// The model has nothing to submit now. Returns the model whose turn it is, if that changes.
    #[must_use]
    pub fn pass(&mut self, id: LaneId, now: Micros) -> Option<LaneId> {
        let lane = self.lane_mut(id);
        lane.waits_since = None;
        lane.is_busy = false;
        if self.holder != Some(id) || !self.lane(id).in_flight.is_empty() {
            return None;
        }
        self.holder = None;
        self.hand_over(now)
    }

    /// Gives the device to the model that is next; it is reserved for that one.
    fn hand_over(&mut self, now: Micros) -> Option<LaneId> {
        let next = self.next(now);
        if next.is_some() {
            self.holder = next;
        }
        if let Some(next) = next {
            self.lane_mut(next).waits_since = None;
        }
        next
    }

    /// The waiting model that is next: the one that is late longest, else the one with the least virtual
    /// time.
    fn next(&self, now: Micros) -> Option<LaneId> {
        let waiting = self.waiting();
        waiting
            .min_by_key(|(_, lane)| {
                let late_since = lane.waits_since.filter(|_| is_late(lane, now));
                (late_since.is_none(), late_since, lane.used_us)
            })
            .map(|(id, _)| id)
    }

    fn waiting(&self) -> impl Iterator<Item = (LaneId, &Lane)> {
        let present = self.lanes.iter().enumerate();
        present
            .filter_map(|(place, lane)| Some((LaneId(place), lane.as_ref()?)))
            .filter(|(_, lane)| lane.waits_since.is_some())
    }

    fn others_work(&self, id: LaneId) -> bool {
        let others = self.lanes.iter().enumerate().filter(|(place, _)| *place != id.0);
        others.filter_map(|(_, lane)| lane.as_ref()).any(|lane| lane.is_busy)
    }

    /// The least virtual time of the models that have work.
    fn floor(&self) -> Option<u64> {
        let busy = self.lanes.iter().flatten().filter(|lane| lane.is_busy);
        busy.map(|lane| lane.used_us).min()
    }

    fn lane(&self, id: LaneId) -> &Lane {
        self.lanes[id.0].as_ref().expect(GONE)
    }

    fn lane_mut(&mut self, id: LaneId) -> &mut Lane {
        self.lanes[id.0].as_mut().expect(GONE)
    }
}

fn is_late(lane: &Lane, now: Micros) -> bool {
    lane.waits_since.is_some_and(|since| now.0.saturating_sub(since.0) >= LATE.0)
}

/// A step takes no longer than this while another model waits, as far as that can be foreseen.
const STEP_LIMIT: Micros = Micros(15_000);
/// Rows of a step, at least: prompts make progress on a device however slow.
const ROWS_LEAST: u32 = 16;
/// However small its weight, a model waits no longer than this and the step that runs.
const LATE: Micros = Micros(200_000);
const GONE: &str = "a model that has left asks for the device";

#[cfg(test)]
mod tests {
    use super::*;

    /// Models that always want the device and pipeline two steps if they may: steps and time of each.
    fn shared(models: &[(u32, u64)], until: u64) -> Vec<(u32, u64)> {
        let mut time = DeviceTime::default();
        let ids: Vec<LaneId> = models.iter().map(|&(weight, _)| time.join(weight)).collect();
        let mut got = vec![(0, 0); models.len()];
        let (mut now, mut running) = (0, VecDeque::new());
        while now < until {
            for (place, &id) in ids.iter().enumerate() {
                let mine = running.iter().filter(|&&each| each == place).count();
                if mine < 2 && matches!(time.ask(id, Micros(now)), Turn::Now(_)) {
                    time.submitted(id, 1, Micros(now));
                    running.push_back(place);
                }
            }
            let ended: usize = running.pop_front().expect("somebody always has a turn");
            assert!(running.iter().all(|&each| each == ended), "two models use the device at once");
            now += models[ended].1;
            got[ended].0 += 1;
            got[ended].1 += models[ended].1;
            let next = time.completed(ids[ended], Micros(now));
            assert_ne!(next, Some(ids[ended]));
        }
        got
    }

    #[test]
    fn test_a_model_alone_keeps_two_steps_in_flight_without_a_limit() {
        let mut time = DeviceTime::default();
        let id = time.join(1);
        for number in 0..2 {
            assert_eq!(time.ask(id, Micros(number)), Turn::Now(None));
            time.submitted(id, 500, Micros(number));
        }
        assert_eq!(time.completed(id, Micros(20_000)), None);
        assert_eq!(time.ask(id, Micros(20_000)), Turn::Now(None));
    }

    #[test]
    fn test_equal_steps_alternate() {
        let mut time = DeviceTime::default();
        let (a, b) = (time.join(1), time.join(1));
        assert_eq!(time.ask(a, Micros(0)), Turn::Now(None));
        time.submitted(a, 1, Micros(0));
        assert_eq!(time.ask(b, Micros(0)), Turn::Later);
        assert_eq!(time.ask(a, Micros(0)), Turn::Later, "no second step while another model waits");
        assert_eq!(time.completed(a, Micros(10)), Some(b));
        assert_eq!(time.ask(a, Micros(10)), Turn::Later, "reserved for the other one");
        assert!(matches!(time.ask(b, Micros(10)), Turn::Now(_)));
        time.submitted(b, 1, Micros(10));
        assert_eq!(time.completed(b, Micros(20)), Some(a));
    }

    #[test]
    fn test_time_is_shared_by_weight_however_long_steps_are() {
        for (models, shares) in [
            (vec![(1, 1000), (1, 15_000)], vec![0.5, 0.5]),
            (vec![(3, 2000), (1, 2000)], vec![0.75, 0.25]),
            (vec![(1, 700), (2, 5000), (1, 15_000)], vec![0.25, 0.5, 0.25]),
        ] {
            let got = shared(&models, 10_000_000);
            let all: u64 = got.iter().map(|(_, micros)| micros).sum();
            for ((_, micros), share) in got.iter().zip(shares) {
                let real = *micros as f64 / all as f64;
                assert!((real - share).abs() < 0.02, "{models:?}: {got:?}");
            }
        }
    }

    #[test]
    fn test_a_model_that_rarely_wants_the_device_waits_for_one_step_only() {
        let mut time = DeviceTime::default();
        let (busy, rare) = (time.join(1), time.join(1));
        let mut now = 0;
        for round in 0..200_u64 {
            assert!(matches!(time.ask(busy, Micros(now)), Turn::Now(_)));
            time.submitted(busy, 100, Micros(now));
            let wants = round % 5 == 0;
            if wants {
                assert_eq!(time.ask(rare, Micros(now)), Turn::Later);
            }
            now += 15_000;
            let next = time.completed(busy, Micros(now));
            assert_eq!(next, wants.then_some(rare), "round {round}");
            if wants {
                assert!(matches!(time.ask(rare, Micros(now)), Turn::Now(_)));
                time.submitted(rare, 1, Micros(now));
                now += 1000;
                assert_eq!(time.completed(rare, Micros(now)), None, "nobody waits");
                assert_eq!(time.pass(rare, Micros(now)), None);
            }
        }
    }

    #[test]
    fn test_idle_time_is_not_saved_up() {
        let mut time = DeviceTime::default();
        let (a, b) = (time.join(1), time.join(1));
        let mut now = 0;
        for _ in 0..1000 {
            time.ask(a, Micros(now));
            time.submitted(a, 1, Micros(now));
            now += 1000;
            assert_eq!(time.completed(a, Micros(now)), None);
        }
        // It has used nothing for a second, and must not have the device alone for one now.
        let mut in_a_row = 0;
        let mut most = 0;
        time.ask(a, Micros(now));
        time.submitted(a, 1, Micros(now));
        let mut running = a;
        for _ in 0..100 {
            let other = if running == a { b } else { a };
            time.ask(other, Micros(now));
            now += 1000;
            let next = time.completed(running, Micros(now)).unwrap_or(running);
            in_a_row = if next == running { in_a_row + 1 } else { 1 };
            most = most.max(in_a_row);
            running = next;
            assert!(matches!(time.ask(running, Micros(now)), Turn::Now(_)));
            time.submitted(running, 1, Micros(now));
        }
        assert!(most <= 2, "{most} steps in a row");
    }

    #[test]
    fn test_a_model_of_little_weight_goes_first_once_it_is_late() {
        let mut time = DeviceTime::default();
        let (heavy, light) = (time.join(100_000), time.join(1));
        time.ask(light, Micros(0));
        time.submitted(light, 1, Micros(0));
        time.ask(heavy, Micros(0));
        let mut now = 100_000;
        assert_eq!(time.completed(light, Micros(now)), Some(heavy));
        let asked = now;
        time.ask(light, Micros(now));
        loop {
            assert!(matches!(time.ask(heavy, Micros(now)), Turn::Now(_)));
            time.submitted(heavy, 1, Micros(now));
            now += 10_000;
            if time.completed(heavy, Micros(now)) == Some(light) {
                break;
            }
        }
        assert_eq!(now - asked, LATE.0);
    }

    #[test]
    fn test_steps_are_limited_only_while_another_model_waits() {
        let mut time = DeviceTime::default();
        let (a, b) = (time.join(1), time.join(1));
        let mut now = 0;
        for rows in [1, 100, 2000, 1, 100, 2000] {
            assert_eq!(time.ask(a, Micros(now)), Turn::Now(None));
            time.submitted(a, rows, Micros(now));
            now += 5000 + 50 * u64::from(rows);
            assert_eq!(time.completed(a, Micros(now)), None);
        }
        time.ask(a, Micros(now));
        time.submitted(a, 1, Micros(now));
        assert_eq!(time.ask(b, Micros(now)), Turn::Later);
        now += 5050;
        assert_eq!(time.completed(a, Micros(now)), Some(b));
        assert_eq!(time.ask(a, Micros(now)), Turn::Later);
        assert_eq!(time.ask(b, Micros(now)), Turn::Now(None), "nothing is known of its steps yet");
        time.submitted(b, 1, Micros(now));
        now += 10_000;
        assert_eq!(time.completed(b, Micros(now)), Some(a));
        time.ask(b, Micros(now));
        let Turn::Now(Some(rows)) = time.ask(a, Micros(now)) else { panic!("no limit") };
        assert!((190..=210).contains(&rows), "{rows} rows of 50 us, beside 5 ms");
    }

    #[test]
    fn test_a_model_that_leaves_or_passes_gives_its_turn_to_the_next() {
        let mut time = DeviceTime::default();
        let (a, b, c) = (time.join(1), time.join(1), time.join(1));
        time.ask(a, Micros(0));
        time.submitted(a, 1, Micros(0));
        time.ask(b, Micros(0));
        time.ask(c, Micros(0));
        assert_eq!(time.leave(a, Micros(1)), Some(b), "also in the middle of a step");
        assert_eq!(time.pass(c, Micros(1)), None, "it had no turn and does not wait any more");
        assert_eq!(time.pass(b, Micros(1)), None);
        assert_eq!(time.ask(c, Micros(2)), Turn::Now(None));
        assert_eq!(time.leave(b, Micros(2)), None);
        assert_eq!(time.join(1), a, "places are used again");
    }
}
