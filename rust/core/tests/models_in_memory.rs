//! Fifty models in memory for twelve, in virtual time: `DeviceMemory` against load on demand.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ingle_core::{DeviceMemory, DeviceTime, LaneId, Micros, ModelMemory, Move, PoolMemory};

const NUM_MODELS: usize = 50;
/// From the moment at which the model is in memory to the first token.
const PREFILL_US: u64 = 50_000;
const SECONDS: f64 = 600.0;

struct Random(u64);

impl Random {
    /// SplitMix64 (Steele et al. 2014).
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

struct Request {
    at_us: u64,
    model: usize,
    runs_us: u64,
}

struct World {
    ids: Vec<LaneId>,
    sizes: Vec<ModelMemory>,
    capacity: u64,
    requests: Vec<Request>,
}

impl World {
    /// Models from 1 to 20 GB with their KV pools, in the order of their popularity, which is Zipf's. They
    /// return at 50 GB/s. Requests run for a second on average.
    fn new(seed: u64, requests_per_second: f64) -> Self {
        let mut random = Random(seed);
        let mut bytes: Vec<u64> = (0..NUM_MODELS as u64)
            .map(|number| [20, 8, 8, 8, 4, 4, 4, 1, 1, 1][number as usize % 10] * 1_000_000_000)
            .collect();
        for last in (1..NUM_MODELS).rev() {
            bytes.swap(last, (random.bits() % (last as u64 + 1)) as usize);
        }
        let size = |&bytes: &u64| {
            let return_time = Micros(50_000 + bytes / 50_000);
            ModelMemory { bytes, pool: PoolMemory::default(), return_time, is_pinned: false }
        };
        let capacity = 12 * bytes.iter().sum::<u64>() / NUM_MODELS as u64;
        let weights: Vec<f64> = (1..=NUM_MODELS).map(|rank| 1.0 / rank as f64).collect();
        let total: f64 = weights.iter().sum();
        let (mut at, mut requests) = (0.0, Vec::new());
        while at < SECONDS {
            at += random.exponential(1.0 / requests_per_second);
            let mut left = random.unit() * total;
            let found = weights.iter().position(|weight| {
                left -= weight;
                left < 0.0
            });
            requests.push(Request {
                at_us: (at * 1e6) as u64,
                model: found.unwrap_or(NUM_MODELS - 1),
                runs_us: (random.exponential(1.0) * 1e6) as u64,
            });
        }
        let mut time = DeviceTime::default();
        let ids = (0..NUM_MODELS).map(|_| time.join(1)).collect();
        Self { ids, sizes: bytes.iter().map(size).collect(), capacity, requests }
    }

    fn number(&self, id: LaneId) -> usize {
        self.ids.iter().position(|other| *other == id).unwrap()
    }
}

/// What came of it.
struct Outcome {
    /// Microseconds from arrival to first token.
    ttft_us: Vec<u64>,
    num_returns: u64,
    return_us: u64,
}

impl Outcome {
    fn p99_s(&mut self) -> f64 {
        self.ttft_us.sort_unstable();
        self.ttft_us[(self.ttft_us.len() - 1) * 99 / 100] as f64 / 1e6
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done(usize),
    Awake(usize),
    Look,
    Arrival(usize),
}

/// The engines of all models, as far as the memory sees them.
struct Node<'a> {
    world: &'a World,
    memory: DeviceMemory,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    num_events: u64,
    is_awake: Vec<bool>,
    is_leaving: Vec<bool>,
    num_running: Vec<u32>,
    waiting: Vec<Vec<usize>>,
    outcome: Outcome,
}

impl<'a> Node<'a> {
    fn new(world: &'a World) -> Self {
        let mut memory = DeviceMemory::new(world.capacity);
        let join = |(&id, &size)| memory.join(id, size, Micros(0));
        let is_awake = world.ids.iter().zip(&world.sizes).map(join).collect();
        let outcome =
            Outcome { ttft_us: vec![0; world.requests.len()], num_returns: 0, return_us: 0 };
        Self {
            world,
            memory,
            events: BinaryHeap::new(),
            num_events: 0,
            is_awake,
            is_leaving: vec![false; NUM_MODELS],
            num_running: vec![0; NUM_MODELS],
            waiting: vec![Vec::new(); NUM_MODELS],
            outcome,
        }
    }

    fn push(&mut self, at: u64, event: Event) {
        self.num_events += 1;
        self.events.push(Reverse((at, self.num_events, event)));
    }

    fn run(mut self) -> Outcome {
        for (number, request) in self.world.requests.iter().enumerate() {
            self.push(request.at_us, Event::Arrival(number));
        }
        let mut looks_again = false;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            let now = Micros(at);
            match event {
                Event::Arrival(number) => self.arrive(number, now),
                Event::Done(model) => self.finish(model, now),
                Event::Awake(model) => self.wake(model, now),
                Event::Look => looks_again = false,
            }
            self.act(now);
            if let Some(then) = self.memory.look_again(now)
                && !looks_again
            {
                looks_again = true;
                self.push(then.0, Event::Look);
            }
        }
        assert!(self.waiting.iter().all(Vec::is_empty), "a request waits for ever");
        self.outcome
    }

    fn arrive(&mut self, number: usize, now: Micros) {
        let model = self.world.requests[number].model;
        self.memory.arrived(self.world.ids[model], now);
        if self.is_awake[model] && !self.is_leaving[model] {
            self.start(number, now);
        } else {
            self.waiting[model].push(number);
        }
    }

    fn start(&mut self, number: usize, now: Micros) {
        let request = &self.world.requests[number];
        self.outcome.ttft_us[number] = now.0 - request.at_us + PREFILL_US;
        self.num_running[request.model] += 1;
        self.push(now.0 + request.runs_us, Event::Done(request.model));
    }

    fn finish(&mut self, model: usize, now: Micros) {
        self.num_running[model] -= 1;
        if self.num_running[model] > 0 {
            return;
        }
        if self.is_leaving[model] {
            self.leave(model, now);
        } else {
            self.memory.idle(self.world.ids[model], now);
        }
    }

    fn leave(&mut self, model: usize, now: Micros) {
        let id = self.world.ids[model];
        (self.is_leaving[model], self.is_awake[model]) = (false, false);
        self.memory.asleep(id);
        if self.waiting[model].is_empty() {
            self.memory.idle(id, now);
        } else {
            self.memory.want(id, now);
        }
    }

    fn wake(&mut self, model: usize, now: Micros) {
        self.is_awake[model] = true;
        let took = self.world.sizes[model].return_time;
        self.memory.awake(self.world.ids[model], took, now);
        for number in std::mem::take(&mut self.waiting[model]) {
            self.start(number, now);
        }
    }

    /// Does what the policy says, and checks that it fits.
    fn act(&mut self, now: Micros) {
        while let Some(next) = self.memory.next(now) {
            match next {
                Move::Wake(id) => {
                    let model = self.world.number(id);
                    let took = self.world.sizes[model].return_time;
                    self.outcome.num_returns += 1;
                    self.outcome.return_us += took.0;
                    self.push(now.0 + took.0, Event::Awake(model));
                    let sizes = self.world.sizes.iter().zip(&self.is_awake);
                    let used: u64 =
                        sizes.filter(|(_, awake)| **awake).map(|(size, _)| size.bytes).sum();
                    assert!(used + self.world.sizes[model].bytes <= self.world.capacity);
                }
                Move::Sleep(id) => {
                    let model = self.world.number(id);
                    self.is_leaving[model] = true;
                    if self.num_running[model] == 0 {
                        self.leave(model, now);
                    }
                }
                Move::Resize { .. } => unreachable!("pools of a fixed size"),
            }
        }
    }
}

/// Requests are taken in the order of their arrival; the idle model that was used longest ago makes room for
/// one that is not there, and requests behind it wait meanwhile.
fn load_on_demand(world: &World) -> Outcome {
    let mut there = [false; NUM_MODELS];
    let (mut used, mut last_used, mut busy_until) = (0, [0; NUM_MODELS], [0; NUM_MODELS]);
    let mut outcome = Outcome { ttft_us: Vec::new(), num_returns: 0, return_us: 0 };
    let mut now = 0;
    for request in &world.requests {
        now = now.max(request.at_us);
        let model = request.model;
        let bytes = world.sizes[model].bytes;
        while !there[model] && used + bytes > world.capacity {
            let loaded = || (0..NUM_MODELS).filter(|&other| there[other]);
            let idle = loaded().filter(|&other| busy_until[other] <= now);
            if let Some(oldest) = idle.min_by_key(|&other| last_used[other]) {
                there[oldest] = false;
                used -= world.sizes[oldest].bytes;
            } else {
                now = loaded().map(|other| busy_until[other]).min().unwrap();
            }
        }
        if !there[model] {
            there[model] = true;
            used += bytes;
            now += world.sizes[model].return_time.0;
            outcome.num_returns += 1;
            outcome.return_us += world.sizes[model].return_time.0;
        }
        last_used[model] = now;
        busy_until[model] = busy_until[model].max(now + request.runs_us);
        outcome.ttft_us.push(now - request.at_us + PREFILL_US);
    }
    outcome
}

/// Requests of several days' beginnings together: one day's most popular model may be its largest.
fn both(requests_per_second: f64) -> [Outcome; 2] {
    let mut sums = [(); 2].map(|()| Outcome { ttft_us: Vec::new(), num_returns: 0, return_us: 0 });
    for seed in 1..=4 {
        let world = World::new(seed, requests_per_second);
        let outcomes = [Node::new(&world).run(), load_on_demand(&world)];
        for (sum, outcome) in sums.iter_mut().zip(outcomes) {
            sum.ttft_us.extend(outcome.ttft_us);
            sum.num_returns += outcome.num_returns;
            sum.return_us += outcome.return_us;
        }
    }
    sums
}

#[test]
fn fifty_models_in_memory_for_twelve_answer_in_half_the_time_of_load_on_demand() {
    for rate in [8.0, 10.0] {
        let [mut policy, mut demand] = both(rate);
        let (p99, on_demand) = (policy.p99_s(), demand.p99_s());
        assert!(
            p99 <= on_demand / 2.0,
            "{rate}/s: p99 TTFT {p99:.2} s, on demand {on_demand:.2} s"
        );
        assert!(policy.num_returns < demand.num_returns);
    }
}

#[test]
fn weights_move_for_a_bounded_part_of_the_time_however_much_is_asked() {
    let [mut policy, _] = both(40.0);
    let moving = policy.return_us as f64 / 1e6 / (4.0 * SECONDS);
    assert!(moving < 0.9, "{moving:.2} of the time");
    assert!(policy.p99_s() < 60.0, "{}", policy.p99_s());
}

/// `cargo test -p ingle-core --test models_in_memory figures -- --ignored --nocapture`
#[test]
#[ignore = "prints the table of decision 0121"]
fn figures() {
    for rate in [2.0, 4.0, 6.0, 8.0, 10.0, 14.0, 20.0, 40.0] {
        let [mut policy, mut demand] = both(rate);
        println!(
            "| {rate} | {:.2} | {:.2} | {} | {} |",
            policy.p99_s(),
            demand.p99_s(),
            policy.num_returns,
            demand.num_returns
        );
    }
}
