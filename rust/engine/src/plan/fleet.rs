//! Many workers and the requests between them, in the order of events. A request goes to the least busy
//! worker of its group, as every router does where prefixes say nothing.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use ingle_core::{ExecutorShape, Micros, SamplingParams};
use ingle_sim::Profile;

use super::requests::{Arrival, Outcome};
use super::worker::{Common, Worker};

/// A worker's sizes.
#[derive(Clone, Debug)]
pub(super) struct FleetShape {
    pub(super) executor: ExecutorShape,
    pub(super) profile: Profile,
    pub(super) max_model_len: u32,
    pub(super) seed: u64,
}

/// Runs the trace on so many workers in so many groups.
pub(super) fn simulate(
    shape: &FleetShape,
    arrivals: &[Arrival],
    num_workers: usize,
    num_groups: usize,
) -> Outcome {
    let mut outcome = Outcome { num_workers, ..Outcome::default() };
    let mut shares: Vec<Vec<Arrival>> = vec![Vec::new(); num_groups];
    let mut state = shape.seed | 1;
    for arrival in arrivals {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut arrival = *arrival;
        let most_prompt = shape.max_model_len.saturating_sub(1).max(1);
        let whole = u64::from(arrival.num_prompt) + u64::from(arrival.num_answer);
        if whole > u64::from(shape.max_model_len) {
            arrival.num_prompt = arrival.num_prompt.min(most_prompt);
            arrival.num_answer = arrival.num_answer.min(shape.max_model_len - arrival.num_prompt);
            outcome.num_cut += 1;
        }
        shares[(state >> 16) as usize % num_groups].push(arrival);
    }
    outcome.first = arrivals.first().map_or(Micros(0), |arrival| arrival.at);
    for (number, share) in shares.iter().enumerate() {
        let size = num_workers / num_groups + usize::from(number < num_workers % num_groups);
        run_group(shape, share, size.max(1), &mut outcome);
    }
    outcome.last = outcome.served.iter().map(|each| each.end).max().unwrap_or(outcome.first);
    outcome
}

/// One router and its workers.
fn run_group(shape: &FleetShape, arrivals: &[Arrival], size: usize, outcome: &mut Outcome) {
    let mut common = Common {
        profile: &shape.profile,
        prompts: HashMap::new(),
        sampling: Arc::new(SamplingParams::default()),
    };
    let new = || Worker::new(shape.executor, shape.max_model_len, &shape.profile);
    let mut workers: Vec<Worker> = (0..size).map(|_| new()).collect();
    let mut by_load: BTreeSet<(usize, usize)> = (0..size).map(|number| (0, number)).collect();
    // A worker's entry that is no longer its next event is stale: something came before it.
    let mut events: BinaryHeap<Reverse<(Micros, usize)>> = BinaryHeap::new();
    let mut left = arrivals.iter().enumerate().peekable();
    loop {
        let next = events.peek().map(|&Reverse((at, number))| (at, number));
        let number = match (left.peek(), next) {
            (Some((id, arrival)), next) if next.is_none_or(|(at, _)| arrival.at < at) => {
                let Some(&(load, number)) = by_load.first() else { return };
                workers[number].admit(*id as u64, arrival, &mut common);
                by_load.remove(&(load, number));
                by_load.insert((workers[number].num_requests(), number));
                left.next();
                number
            }
            (_, Some((at, number))) => {
                events.pop();
                let worker = &mut workers[number];
                if worker.next_event() != Some(at) {
                    continue;
                }
                let load = worker.num_requests();
                worker.advance(&shape.profile, &mut outcome.served);
                by_load.remove(&(load, number));
                by_load.insert((worker.num_requests(), number));
                number
            }
            _ => break,
        };
        if let Some(at) = workers[number].next_event() {
            events.push(Reverse((at, number)));
        }
    }
    outcome.busy_us += workers.iter().map(Worker::busy_us).sum::<u64>();
    outcome.num_steps += workers.iter().map(Worker::num_steps).sum::<u64>();
}
