//! Picks the algorithm of each product by measurement, once, and keeps the picks on disk. Load only.
//!
//! A restart with the same library, card and shapes repeats the picks, and with them every bit.

use std::collections::HashMap;
use std::sync::Arc;

use crate::CudaError;
use crate::cache::{Cache, key};
use crate::context::Context;
use crate::gemm::{Blas, GemmArgs, GemmShape, Plan, Problem, WORKSPACE_BYTES};
use crate::stream::{Event, Stream};
use crate::sys::cublaslt::MatmulAlgo;

/// Buffers to measure a shape on.
#[derive(Clone, Debug)]
pub(crate) struct Operands {
    /// Weights of that shape, several where the model has them, so that the L2 cache does not help.
    pub(crate) weights: Vec<u64>,
    pub(crate) x: u64,
    pub(crate) out: u64,
}

/// What is needed to pick algorithms.
pub(crate) struct Tuner<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) blas: &'a Arc<Blas>,
    pub(crate) stream: &'a Stream,
    pub(crate) cache: Option<&'a Cache>,
    pub(crate) workspace: u64,
    pub(crate) operands: HashMap<GemmShape, Operands>,
}

impl Tuner<'_> {
    /// Plans for every row count and shape; tells how many had to be measured. Blocking.
    pub(crate) fn plans(
        &self,
        wanted: &[(u32, GemmShape)],
    ) -> Result<(HashMap<(u32, GemmShape), Plan>, usize), CudaError> {
        let name = self.cache_key(wanted)?;
        let stored = self
            .cache
            .and_then(|cache| cache.read(&name))
            .and_then(|bytes| decode(&bytes, wanted.len()));
        let (start, end) = (Event::timing(self.context)?, Event::timing(self.context)?);
        let mut plans = HashMap::new();
        let mut picks = Vec::with_capacity(wanted.len());
        let mut measured = 0;
        for (index, &(m, shape)) in wanted.iter().enumerate() {
            let problem = self.blas.problem(m, shape)?;
            let stored = stored.as_ref().map(|stored| stored[index]);
            let algo = match stored.filter(|algo| problem.accepts(algo)) {
                Some(algo) => {
                    // Loads its code, which must not happen for the first time in a capture.
                    self.run(&problem, &algo, shape, 1)?;
                    algo
                }
                None => {
                    measured += 1;
                    self.measure(&problem, shape, &start, &end)?
                }
            };
            picks.push(algo);
            plans.insert((m, shape), Plan { problem, algo });
        }
        self.stream.synchronise()?;
        if measured > 0
            && let Some(cache) = self.cache
        {
            cache.write(&name, &encode(&picks));
        }
        Ok((plans, measured))
    }

    /// The fastest of the library's proposals.
    fn measure(
        &self,
        problem: &Problem,
        shape: GemmShape,
        start: &Event,
        end: &Event,
    ) -> Result<MatmulAlgo, CudaError> {
        let candidates = problem.candidates(CANDIDATES)?;
        let mut best: Option<(f32, MatmulAlgo)> = None;
        for algo in candidates {
            if self.run(problem, &algo, shape, 1).is_err() {
                continue;
            }
            start.record(self.stream)?;
            self.run(problem, &algo, shape, RUNS)?;
            end.record(self.stream)?;
            end.synchronise()?;
            let time = end.milliseconds_since(start)?;
            if best.is_none_or(|(shortest, _)| time < shortest) {
                best = Some((time, algo));
            }
        }
        best.map(|(_, algo)| algo).ok_or_else(|| {
            CudaError::Unsupported(format!("cuBLASLt has no algorithm for {problem:?}"))
        })
    }

    fn run(
        &self,
        problem: &Problem,
        algo: &MatmulAlgo,
        shape: GemmShape,
        times: usize,
    ) -> Result<(), CudaError> {
        let operands = self
            .operands
            .get(&shape)
            .ok_or_else(|| CudaError::Unsupported(format!("no buffers to measure {shape:?} on")))?;
        for weight in operands.weights.iter().cycle().take(times) {
            let args = GemmArgs { x: operands.x, w: *weight, out: operands.out };
            // SAFETY: the operands are weights of this shape and step buffers laid out for the largest
            // row count; no step runs during load, and the workspace has `WORKSPACE_BYTES`.
            unsafe { problem.run(self.stream, algo, args, self.workspace)? };
        }
        Ok(())
    }

    fn cache_key(&self, wanted: &[(u32, GemmShape)]) -> Result<String, CudaError> {
        let device = &self.context.info;
        let text = format!(
            "1 {} {} {} {WORKSPACE_BYTES} {:?} {wanted:?}",
            self.blas.version()?,
            device.name,
            device.num_sms,
            self.blas.element(),
        );
        Ok(key("gemm", &[text.as_bytes()]))
    }
}

fn encode(picks: &[MatmulAlgo]) -> Vec<u8> {
    picks.iter().flat_map(|algo| algo.data).flat_map(u64::to_le_bytes).collect()
}

fn decode(bytes: &[u8], count: usize) -> Option<Vec<MatmulAlgo>> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (picks, more) = words.as_chunks::<8>();
    let whole = rest.is_empty() && more.is_empty() && picks.len() == count;
    whole.then(|| picks.iter().map(|data| MatmulAlgo { data: *data }).collect())
}

/// Proposals that are measured.
const CANDIDATES: usize = 8;
/// Timed runs of each, over different weights.
const RUNS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_survive_the_way_to_disk() {
        let picks = [MatmulAlgo { data: [1, 2, 3, 4, 5, 6, 7, 8] }, MatmulAlgo { data: [9; 8] }];
        let bytes = encode(&picks);
        assert_eq!(decode(&bytes, 2).unwrap(), picks);
        assert!(decode(&bytes, 3).is_none());
        assert!(decode(&bytes[1..], 2).is_none());
    }
}
