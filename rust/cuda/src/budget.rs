//! Divides the card's memory, from the configuration, before anything is allocated.

use std::fmt;

use ingle_core::KvGroups;

use crate::CudaError;
use crate::arena::PIECE_BYTES;
use crate::executor::STEPS_IN_FLIGHT;

/// Who gets how much of the card; printed at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// What each part takes, bytes.
    pub parts: Vec<(&'static str, u64)>,
    /// Of those, the KV pool.
    pub kv_cache_bytes: u64,
    /// Blocks that the pool holds.
    pub num_blocks: u32,
    /// Most that this process may hold.
    pub limit_bytes: u64,
    /// Free on the card at start, the context already counted as used.
    pub free_bytes: u64,
    /// The card's memory.
    pub total_bytes: u64,
}

/// What the budget is computed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BudgetInputs {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) weight_bytes: u64,
    pub(crate) buffer_bytes: u64,
    /// What layers keep of sequences, copies included.
    pub(crate) state_bytes: u64,
    pub(crate) utilization: f32,
    pub(crate) kv_cache_memory_bytes: Option<u64>,
    pub(crate) block_bytes: u64,
    pub(crate) block_size: u32,
    pub(crate) kv_groups: KvGroups,
    /// Tokens that the pool must hold at least.
    pub(crate) least_tokens: u32,
}

impl MemoryBudget {
    /// Divides the memory.
    ///
    /// # Errors
    /// With the numbers, if the rest holds hardly a block or less than it must.
    pub(crate) fn new(inputs: &BudgetInputs) -> Result<Self, CudaError> {
        let weights = inputs.weight_bytes.next_multiple_of(PIECE_BYTES);
        let buffers = inputs.buffer_bytes.next_multiple_of(PIECE_BYTES);
        let states = inputs.state_bytes.next_multiple_of(PIECE_BYTES);
        let limit = (inputs.total_bytes as f64 * f64::from(inputs.utilization)) as u64;
        let taken = weights + buffers + states;
        let by_limit = limit.saturating_sub(taken + OVERHEAD_BYTES);
        let by_free = inputs.free_bytes.saturating_sub(taken + RESERVE_BYTES);
        let wanted = inputs.kv_cache_memory_bytes.unwrap_or(by_limit.min(by_free));
        let kv = wanted / PIECE_BYTES * PIECE_BYTES;
        let num_blocks = (kv / inputs.block_bytes).min(u64::from(u32::MAX / inputs.block_size));
        let mut parts = vec![
            ("context, modules, graphs (estimate)", OVERHEAD_BYTES),
            ("weights", weights),
            ("step buffers", buffers),
            ("KV pool", kv),
        ];
        if states > 0 {
            parts.insert(3, ("states of sequences", states));
        }
        let budget = Self {
            parts,
            kv_cache_bytes: kv,
            num_blocks: num_blocks as u32,
            limit_bytes: limit,
            free_bytes: inputs.free_bytes,
            total_bytes: inputs.total_bytes,
        };
        let num_groups = inputs.kv_groups.len() as u64;
        if num_blocks < MIN_BLOCKS * num_groups || kv > by_free {
            let by_states = match states {
                0 => String::new(),
                _ => format!("states of max_num_seqs sequences {} MiB, ", states >> 20),
            };
            return Err(CudaError::OutOfMemory(format!(
                "does not fit: {by_states}weights {} MiB, step buffers {} MiB, KV pool {} MiB in blocks of {} \
                 KiB; the card has {} MiB free of {} MiB and this process may hold {} MiB",
                weights >> 20,
                buffers >> 20,
                kv >> 20,
                inputs.block_bytes >> 10,
                inputs.free_bytes >> 20,
                inputs.total_bytes >> 20,
                limit >> 20,
            )));
        }
        let groups = &inputs.kv_groups;
        let holds = groups.most_tokens(budget.num_blocks, inputs.block_size, STEPS_IN_FLIGHT);
        if holds < inputs.least_tokens {
            return Err(CudaError::OutOfMemory(format!(
                "max_model_len: {} tokens, the KV pool holds {holds}",
                inputs.least_tokens
            )));
        }
        Ok(budget)
    }
}

impl fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in &self.parts {
            writeln!(f, "{name:<40} {:>8} MiB", bytes >> 20)?;
        }
        let sum: u64 = self.parts.iter().map(|(_, bytes)| bytes).sum();
        writeln!(f, "{:<40} {:>8} MiB", "sum", sum >> 20)?;
        write!(
            f,
            "{:<40} {:>8} MiB of {} MiB, {} MiB free at start",
            "limit",
            self.limit_bytes >> 20,
            self.total_bytes >> 20,
            self.free_bytes >> 20
        )
    }
}

/// What the context, loaded code, cuBLASLt and graphs take outside the arena: an estimate, measured as
/// 0.6 to 0.7 GB for 60 graphs on one H200.
const OVERHEAD_BYTES: u64 = 768 << 20;
/// Fewest blocks of each KV group that can serve anything.
const MIN_BLOCKS: u64 = 4;
/// Left to the card's other users.
const RESERVE_BYTES: u64 = 512 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> BudgetInputs {
        BudgetInputs {
            total_bytes: 140 << 30,
            free_bytes: 139 << 30,
            weight_bytes: 16 << 30,
            buffer_bytes: 1 << 30,
            state_bytes: 0,
            utilization: 0.5,
            kv_cache_memory_bytes: None,
            block_bytes: 8 << 20,
            block_size: 64,
            kv_groups: KvGroups::ONE,
            least_tokens: 0,
        }
    }

    #[test]
    fn the_pool_is_what_the_limit_and_the_neighbours_leave() {
        let alone = MemoryBudget::new(&inputs()).unwrap();
        assert_eq!(alone.kv_cache_bytes, (70 << 30) - (17 << 30) - OVERHEAD_BYTES);
        assert_eq!(u64::from(alone.num_blocks), alone.kv_cache_bytes / (8 << 20));
        let shared = BudgetInputs { free_bytes: 50 << 30, ..inputs() };
        let shared = MemoryBudget::new(&shared).unwrap();
        assert_eq!(shared.kv_cache_bytes, (33 << 30) - RESERVE_BYTES);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_numbers() {
        let crowded = BudgetInputs { free_bytes: 17 << 30, ..inputs() };
        let error = MemoryBudget::new(&crowded).unwrap_err().to_string();
        assert!(error.contains("17408 MiB free") && error.contains("16384 MiB"), "{error}");
        let greedy = BudgetInputs { kv_cache_memory_bytes: Some(200 << 30), ..inputs() };
        assert!(MemoryBudget::new(&greedy).is_err());
        let tiny = BudgetInputs { kv_cache_memory_bytes: Some(31 << 20), ..inputs() };
        assert!(MemoryBudget::new(&tiny).is_err());
    }

    #[test]
    fn the_longest_sequence_fits_or_is_refused() {
        // 1 GiB in blocks of 8 MiB: 128 of 64 tokens.
        let kv_cache_memory_bytes = Some(1 << 30);
        let all = BudgetInputs { kv_cache_memory_bytes, least_tokens: 8192, ..inputs() };
        assert_eq!(MemoryBudget::new(&all).unwrap().num_blocks, 128);
        let error = MemoryBudget::new(&BudgetInputs { least_tokens: 8193, ..all }).unwrap_err();
        assert_eq!(error.to_string(), "max_model_len: 8193 tokens, the KV pool holds 8192");
    }
}
