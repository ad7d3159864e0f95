//! Picks the algorithm of each product by measurement, once, and stores the picks on disk. At load
//! only. A restart with the same library, card and shapes repeats the picks, and with them every
//! bit.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::CudaError;
use crate::cache::{Cache, key};
use crate::context::Context;
use crate::device_slice::DeviceSlice;
use crate::dtypes::ScaleMode;
use crate::four_bit_gemm::{WidenedProduct, Widening};
use crate::gemm::{Blas, GemmArgs, Problem, WORKSPACE_BYTES};
use crate::landmarks::{landmarks_first, neighbours};
use crate::operands::Operands;
use crate::product::Product;
use crate::same_bits::RowBits;
use crate::shapes::{GemmOut, GemmShape};
use crate::stream::{Event, Stream};
use crate::sys::cublaslt::MatmulAlgo;

/// What is needed to pick algorithms.
pub(crate) struct Tuner<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) blas: &'a Arc<Blas>,
    pub(crate) stream: &'a Stream,
    pub(crate) cache: Option<&'a Cache>,
    pub(crate) workspace: DeviceSlice<u8>,
    /// One algorithm for all row counts of a shape, so that a row's bits do not depend on how many there
    /// are; `own` must offer none then.
    pub(crate) deterministic: bool,
    pub(crate) operands: HashMap<GemmShape, Operands>,
    /// The builds of our own kernel for a row count and shape.
    pub(crate) own: &'a dyn Fn(u32, GemmShape) -> Vec<Product>,
    /// What widens the matrices of a shape of 4-bit weights for the library.
    pub(crate) widening: &'a dyn Fn(GemmShape) -> Option<Widening>,
    /// Whether a graph that is recorded after the load runs this product.
    pub(crate) is_recorded: &'a dyn Fn(u32, GemmShape) -> bool,
    /// Counts runs, so that each takes another weight than the one before.
    pub(crate) runs: Cell<usize>,
}

/// What was picked for one row count and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pick {
    Library(MatmulAlgo),
    /// This build of our own kernel.
    Own(usize),
    /// A gated product that does not pay: gate after the plain one.
    Neither,
}

/// A pick and what the product then takes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    pick: Pick,
    milliseconds: f32,
}

impl Measured {
    fn library(self) -> Option<MatmulAlgo> {
        match self.pick {
            Pick::Library(algo) => Some(algo),
            Pick::Own(_) | Pick::Neither => None,
        }
    }
}

/// All products.
pub(crate) struct Picked {
    pub(crate) products: HashMap<(u32, GemmShape), Product>,
    /// Milliseconds of each, those of the plain product and the gate for a gated shape that does not pay.
    pub(crate) times: HashMap<(u32, GemmShape), f32>,
    /// How many had to be measured.
    pub(crate) num_measured: usize,
}

/// Something that can compute a product, and its time.
struct Candidate {
    pick: Pick,
    product: Product,
    /// The library's first proposal.
    is_first: bool,
    /// Milliseconds a run.
    time: f32,
}

impl Candidate {
    /// The time with the margin that it must win by.
    fn weighed(&self) -> f32 {
        match (self.pick, self.is_first) {
            (Pick::Own(_), _) => self.time * OWN_MARGIN,
            (_, true) => self.time * FIRST_BONUS,
            (_, false) => self.time,
        }
    }
}

impl Tuner<'_> {
    /// Products for every row count and shape; `None` if one has no stored pick and `measure` is false.
    /// A gated shape follows its plain one. Blocking.
    pub(crate) fn products(
        &self,
        wanted: &[(u32, GemmShape)],
        measure: bool,
    ) -> Result<Option<Picked>, CudaError> {
        let name = self.cache_key(wanted)?;
        let stored = self
            .cache
            .and_then(|cache| cache.read(&name))
            .and_then(|bytes| decode(&bytes, wanted.len()));
        let timer = (Event::timing(self.context)?, Event::timing(self.context)?);
        let (mut products, mut times) = (HashMap::new(), HashMap::new());
        let mut common = HashMap::new();
        let mut picks = vec![None; wanted.len()];
        let mut num_measured = 0;
        if measure {
            self.warm_up(wanted)?;
        }
        for index in landmarks_first(wanted) {
            let (m, shape) = wanted[index];
            let stored = stored.as_ref().map(|stored| stored[index]);
            let known = stored.and_then(|known| Some((known, self.realise(known.pick, m, shape)?)));
            let (pick, product) = match known {
                Some(known) => known,
                None if !measure => return Ok(None),
                None if self.deterministic => {
                    num_measured += 1;
                    let algo = match common.get(&shape) {
                        Some(&algo) => algo,
                        None => {
                            let of_shape = wanted.iter().filter(|(_, other)| *other == shape);
                            let rows: Vec<u32> = of_shape.map(|&(rows, _)| rows).collect();
                            *common
                                .entry(shape)
                                .or_insert(self.measure_common(&rows, shape, &timer)?)
                        }
                    };
                    let problem = self.blas.problem(m, shape)?;
                    let product = Product::Library { problem, algo };
                    self.run(&product, shape, 1)?;
                    let milliseconds = self.time(&product, shape, 1, &timer)?;
                    (Measured { pick: Pick::Library(algo), milliseconds }, Some(product))
                }
                None => {
                    num_measured += 1;
                    let plain = GemmShape { out: GemmOut::Device, ..shape };
                    let plain_time = times.get(&(m, plain)).copied().unwrap_or(0.0);
                    let library = |index: usize| picks[index].and_then(Measured::library);
                    let candidates = match neighbours(wanted, library, index) {
                        Some(near) => self.candidates_near(m, shape, &near)?,
                        None => self.candidates(m, shape)?,
                    };
                    self.measure((m, shape), candidates, plain_time, &timer)?
                }
            };
            times.insert((m, shape), pick.milliseconds);
            picks[index] = Some(pick);
            if let Some(product) = product {
                // The library loads the code of a product, for 3 ms, where it is first queued. A step that no graph is
                // recorded for may come when the process can load none any more; the others can wait.
                if !(self.is_recorded)(m, shape) {
                    self.run(&product, shape, 1)?;
                }
                products.insert((m, shape), product);
            }
        }
        self.stream.synchronise()?;
        if num_measured > 0
            && let Some(cache) = self.cache
        {
            let picks: Vec<Measured> = picks.into_iter().flatten().collect();
            cache.write(&name, &encode(&picks));
        }
        Ok(Some(Picked { products, times, num_measured }))
    }

    /// The product of a stored pick, if it still can be made; `Some(None)` for `Neither`.
    fn realise(&self, pick: Pick, m: u32, shape: GemmShape) -> Option<Option<Product>> {
        match pick {
            Pick::Neither => (shape.out == GemmOut::Gated).then_some(None),
            Pick::Own(build) => (self.own)(m, shape).into_iter().nth(build).map(Some),
            Pick::Library(algo) => {
                let is_accepted = self.problem(m, shape).ok()?.accepts(&algo);
                is_accepted.then(|| self.library(m, shape, algo).ok()).flatten().map(Some)
            }
        }
    }

    /// The library's descriptors for a product, with the widened matrix where it is of 4-bit codes.
    fn problem(&self, m: u32, shape: GemmShape) -> Result<Problem, CudaError> {
        self.blas.problem(m, shape.widened())
    }

    /// A product by the library.
    fn library(&self, m: u32, shape: GemmShape, algo: MatmulAlgo) -> Result<Product, CudaError> {
        let problem = self.problem(m, shape)?;
        if shape.four_bit().is_none() {
            return Ok(Product::Library { problem, algo });
        }
        let missing = || CudaError::Unsupported(format!("no kernel widens {shape:?}"));
        let widening = (self.widening)(shape).ok_or_else(missing)?;
        Ok(Product::Widened(WidenedProduct { problem, algo, widening }))
    }

    /// The fastest candidate.
    ///
    /// `plain_time` is the time of the product without the gate, for a gated shape.
    fn measure(
        &self,
        (m, shape): (u32, GemmShape),
        mut candidates: Vec<Candidate>,
        plain_time: f32,
        timer: &(Event, Event),
    ) -> Result<(Measured, Option<Product>), CudaError> {
        self.drop_slow(&mut candidates, shape, timer)?;
        self.time_in_turns(&mut candidates, shape, timer)?;
        let limit = plain_time + GATE_MILLISECONDS;
        let best = candidates.into_iter().min_by(|a, b| a.weighed().total_cmp(&b.weighed()));
        match best {
            Some(best) if shape.out != GemmOut::Gated || best.weighed() < limit => {
                let measured = Measured { pick: best.pick, milliseconds: best.weighed() };
                Ok((measured, Some(best.product)))
            }
            _ if shape.out == GemmOut::Gated => {
                Ok((Measured { pick: Pick::Neither, milliseconds: limit }, None))
            }
            _ => Err(CudaError::Unsupported(format!(
                "cuBLASLt has no algorithm for {m} rows, {shape:?}"
            ))),
        }
    }

    /// Runs each candidate twice, the first time to load its code, and keeps the few that come near the
    /// quickest. What cannot run here goes too; the library's first proposal stays.
    fn drop_slow(
        &self,
        candidates: &mut Vec<Candidate>,
        shape: GemmShape,
        timer: &(Event, Event),
    ) -> Result<(), CudaError> {
        for candidate in &mut *candidates {
            let loaded = self.run(&candidate.product, shape, 1);
            let timed = loaded.and_then(|()| self.time(&candidate.product, shape, 1, timer));
            candidate.time = timed.unwrap_or(f32::INFINITY);
        }
        candidates.retain(|candidate| candidate.time.is_finite());
        candidates.sort_by(|a, b| a.weighed().total_cmp(&b.weighed()));
        let Some(limit) = candidates.first().map(|best| best.weighed() * FAR_BEHIND) else {
            return Ok(());
        };
        let mut place = 0;
        candidates.retain(|candidate| {
            place += 1;
            candidate.is_first || (place <= FINALISTS && candidate.weighed() < limit)
        });
        Ok(())
    }

    /// Sets each candidate's time to the median of rounds in which all take a turn, so that a clock that
    /// moves moves all of them.
    fn time_in_turns(
        &self,
        candidates: &mut [Candidate],
        shape: GemmShape,
        timer: &(Event, Event),
    ) -> Result<(), CudaError> {
        let quickest = candidates.iter().map(|c| c.time).fold(f32::INFINITY, f32::min);
        let runs = if quickest > LONG_MILLISECONDS { 1 } else { RUNS };
        let mut rounds = vec![[0.0; ROUNDS]; candidates.len()];
        for round in 0..ROUNDS {
            for (candidate, times) in candidates.iter().zip(&mut rounds) {
                times[round] = self.time(&candidate.product, shape, runs, timer)? / runs as f32;
            }
        }
        for (candidate, times) in candidates.iter_mut().zip(&mut rounds) {
            times.sort_by(f32::total_cmp);
            candidate.time = times[ROUNDS / 2];
        }
        Ok(())
    }

    /// Everything that can compute a product.
    fn candidates(&self, m: u32, shape: GemmShape) -> Result<Vec<Candidate>, CudaError> {
        let mut candidates = Vec::new();
        if shape.out != GemmOut::Gated && shape.scale != ScaleMode::Channel {
            // Of those with 4-bit codes most of the time goes into widening them.
            let most = if shape.four_bit().is_some() { CANDIDATES_NEAR } else { CANDIDATES };
            let algos = self.problem(m, shape)?.candidates(most, false)?;
            candidates = self.library_candidates(m, shape, algos)?;
        }
        for (build, product) in (self.own)(m, shape).into_iter().enumerate() {
            candidates.push(Candidate {
                pick: Pick::Own(build),
                product,
                is_first: false,
                time: 0.0,
            });
        }
        Ok(candidates)
    }

    /// The library's first proposals and what was picked for row counts nearby.
    fn candidates_near(
        &self,
        m: u32,
        shape: GemmShape,
        near: &[MatmulAlgo],
    ) -> Result<Vec<Candidate>, CudaError> {
        let problem = self.problem(m, shape)?;
        let mut algos = problem.candidates(CANDIDATES_NEAR, false)?;
        for algo in near {
            if !algos.contains(algo) && problem.accepts(algo) {
                algos.push(*algo);
            }
        }
        self.library_candidates(m, shape, algos)
    }

    fn library_candidates(
        &self,
        m: u32,
        shape: GemmShape,
        algos: Vec<MatmulAlgo>,
    ) -> Result<Vec<Candidate>, CudaError> {
        let candidate = |(index, algo)| {
            let product = self.library(m, shape, algo)?;
            Ok(Candidate { pick: Pick::Library(algo), product, is_first: index == 0, time: 0.0 })
        };
        algos.into_iter().enumerate().map(candidate).collect()
    }

    /// Of the algorithms that take all of these row counts and keep a row's bits the fastest over fewest
    /// and most rows. Two algorithms differ in bits even where both add from the first k to the last:
    /// tensor cores add groups of them at once, of different sizes and in less than f32.
    fn measure_common(
        &self,
        rows: &[u32],
        shape: GemmShape,
        timer: &(Event, Event),
    ) -> Result<MatmulAlgo, CudaError> {
        let problems =
            rows.iter().map(|&m| self.blas.problem(m, shape)).collect::<Result<Vec<_>, _>>()?;
        let ends = [rows.iter().min(), rows.iter().max()];
        let mut timed: Vec<(f32, MatmulAlgo)> = Vec::new();
        for &m in ends.into_iter().flatten() {
            for algo in self.blas.problem(m, shape)?.candidates(CANDIDATES, true)? {
                if !problems.iter().all(|problem| problem.accepts(&algo)) {
                    continue;
                }
                let mut sum = 0.0;
                for &m in ends.into_iter().flatten() {
                    let problem = self.blas.problem(m, shape)?;
                    let product = Product::Library { problem, algo };
                    // Skip a proposal that cannot run here.
                    let timed = self
                        .run(&product, shape, 1)
                        .and_then(|()| self.time(&product, shape, RUNS, timer));
                    sum += timed.unwrap_or(f32::INFINITY);
                }
                if sum.is_finite() {
                    timed.push((sum, algo));
                }
            }
        }
        timed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        for (_, algo) in timed {
            if self.keeps_bits(rows, shape, algo)? {
                return Ok(algo);
            }
        }
        Err(CudaError::Unsupported(format!(
            "cuBLASLt has no one algorithm for all of {rows:?} rows that keeps a row's bits, {shape:?}"
        )))
    }

    fn keeps_bits(
        &self,
        rows: &[u32],
        shape: GemmShape,
        algo: MatmulAlgo,
    ) -> Result<bool, CudaError> {
        let product = |&m: &u32| {
            let problem = self.blas.problem(m, shape)?;
            Ok((m, Product::Library { problem, algo }))
        };
        let products = rows.iter().map(product).collect::<Result<Vec<_>, CudaError>>()?;
        let operands = self.operands_of(shape)?;
        RowBits { stream: self.stream, operands, shape, workspace: self.workspace }.agree(&products)
    }

    /// Brings the clocks up: they are low until the card has worked for some milliseconds.
    fn warm_up(&self, wanted: &[(u32, GemmShape)]) -> Result<(), CudaError> {
        let largest = wanted
            .iter()
            .filter(|(_, shape)| shape.out != GemmOut::Gated && shape.scale != ScaleMode::Channel);
        let largest = largest.max_by_key(|(m, shape)| u64::from(*m) * u64::from(shape.n));
        let Some(&(m, shape)) = largest else { return Ok(()) };
        let algos = self.problem(m, shape)?.candidates(1, false)?;
        let Some(&algo) = algos.first() else { return Ok(()) };
        let product = self.library(m, shape, algo)?;
        let started = std::time::Instant::now();
        while started.elapsed() < WARM_UP {
            self.run(&product, shape, RUNS)?;
            self.stream.synchronise()?;
        }
        Ok(())
    }

    /// Milliseconds of `runs` runs of a product that has run before.
    fn time(
        &self,
        product: &Product,
        shape: GemmShape,
        runs: usize,
        (start, end): &(Event, Event),
    ) -> Result<f32, CudaError> {
        start.record(self.stream)?;
        self.run(product, shape, runs)?;
        end.record(self.stream)?;
        end.synchronise()?;
        end.milliseconds_since(start)
    }

    fn run(&self, product: &Product, shape: GemmShape, times: usize) -> Result<(), CudaError> {
        let operands = self.operands_of(shape)?;
        for _ in 0..times {
            let run = self.runs.replace(self.runs.get() + 1);
            let weight = operands.weights[run % operands.weights.len()];
            let args = GemmArgs { x: operands.x, w: weight, out: operands.out };
            product.run(self.stream, &args, self.workspace)?;
        }
        Ok(())
    }

    fn operands_of(&self, shape: GemmShape) -> Result<&Operands, CudaError> {
        let missing = || CudaError::Unsupported(format!("no buffers to measure {shape:?} on"));
        self.operands.get(&shape).ok_or_else(missing)
    }

    fn cache_key(&self, wanted: &[(u32, GemmShape)]) -> Result<String, CudaError> {
        let device = &self.context.info;
        let text = format!(
            "10 {} {} {} {WORKSPACE_BYTES} {:?} {} {wanted:?}",
            self.blas.version()?,
            device.name,
            device.limits.num_sms,
            self.blas.act_element(),
            self.deterministic,
        );
        Ok(key("gemm", &[text.as_bytes()]))
    }
}

/// Ten words each: the kind, its data, the bits of the time.
fn encode(picks: &[Measured]) -> Vec<u8> {
    let words = picks.iter().flat_map(|Measured { pick, milliseconds }| {
        let (kind, [a, b, c, d, e, f, g, h]) = match pick {
            Pick::Neither => (0, [0; 8]),
            Pick::Own(build) => (1, [*build as u64, 0, 0, 0, 0, 0, 0, 0]),
            Pick::Library(MatmulAlgo { data }) => (2, *data),
        };
        [kind, a, b, c, d, e, f, g, h, u64::from(milliseconds.to_bits())]
    });
    words.flat_map(u64::to_le_bytes).collect()
}

fn decode(bytes: &[u8], count: usize) -> Option<Vec<Measured>> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (picks, more) = words.as_chunks::<10>();
    if !rest.is_empty() || !more.is_empty() || picks.len() != count {
        return None;
    }
    picks
        .iter()
        .map(|[kind, data @ .., time]| {
            let pick = match kind {
                0 => Pick::Neither,
                1 => Pick::Own(usize::try_from(data[0]).ok()?),
                2 => Pick::Library(MatmulAlgo { data: *data }),
                _ => return None,
            };
            let milliseconds = f32::from_bits(u32::try_from(*time).ok()?);
            (milliseconds.is_finite() && milliseconds >= 0.0)
                .then_some(Measured { pick, milliseconds })
        })
        .collect()
}

/// Proposals that are measured.
const CANDIDATES: usize = 10;
/// The same between two landmarks.
const CANDIDATES_NEAR: usize = 2;
/// How many candidates are timed in turns, and how much slower than the fastest they may be after one run.
const FINALISTS: usize = 4;
const FAR_BEHIND: f32 = 1.2;
/// Timed runs of each in a round, over different weights; from `LONG_MILLISECONDS` on one is long enough.
const RUNS: usize = 4;
const LONG_MILLISECONDS: f32 = 0.15;
/// Rounds in turns.
const ROUNDS: usize = 3;
/// How long the card works before the first measurement.
const WARM_UP: std::time::Duration = std::time::Duration::from_millis(30);
/// The library's first proposal counts as this much quicker: others must win by more than noise.
const FIRST_BONUS: f32 = 0.98;
/// Our own kernel must win by this factor: back to back it hides its start behind its own end, which
/// between other kernels of a step it cannot.
const OWN_MARGIN: f32 = 1.05;
/// The time that the gate kernel adds after a plain product of few rows.
const GATE_MILLISECONDS: f32 = 0.002;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_survive_the_way_to_disk() {
        let algo = MatmulAlgo { data: [1, 2, 3, 4, 5, 6, 7, 8] };
        let picks = [Pick::Library(algo), Pick::Own(2), Pick::Neither]
            .map(|pick| Measured { pick, milliseconds: 0.25 });
        let bytes = encode(&picks);
        assert_eq!(decode(&bytes, 3).unwrap(), picks);
        assert!(decode(&bytes, 2).is_none());
        assert!(decode(&bytes[1..], 3).is_none());
        let mut unknown = bytes.clone();
        unknown[0] = 9;
        assert!(decode(&unknown, 3).is_none());
        let mut timeless = bytes;
        timeless[9 * 8..10 * 8].copy_from_slice(&u64::from(f32::NAN.to_bits()).to_le_bytes());
        assert!(decode(&timeless, 3).is_none());
    }
}
