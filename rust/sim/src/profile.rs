//! The time that a step takes on the simulated machine. Plain data.

use std::path::Path;

use ingle_core::{ExecutorShape, KvGroups, Micros, SampleMode, StepPlan};
use serde::{Deserialize, Serialize};

use crate::SimError;

/// A roofline: weights are streamed once a step or the arithmetic takes longer; each row's KV is
/// streamed besides; and something is lost in between.
///
/// ```text
/// seconds = max(weight_bytes / memory_bytes_per_second,
///               (rows * flops_per_row + samples * flops_per_sample) / flops_per_second)
///         + context_tokens * kv_bytes_per_token / memory_bytes_per_second
///         + overhead_us / 10^6
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The simulated machine and model.
    pub name: String,
    /// Read in every step.
    pub weight_bytes: f64,
    /// Rate of reads.
    pub memory_bytes_per_second: f64,
    /// Of all layers, for one token row.
    pub flops_per_row: f64,
    /// Of the head, for one sampled row.
    pub flops_per_sample: f64,
    /// Rate of matrix products.
    pub flops_per_second: f64,
    /// Keys and values of one token in all layers.
    pub kv_bytes_per_token: f64,
    /// Fixed overhead of each step: launches, small kernels, sampling.
    pub overhead_us: f64,
    /// Tokens that the KV pool holds.
    pub kv_pool_tokens: u32,
    /// Length of an embedding.
    pub hidden_size: u32,
    /// GEMM tile that the scheduler aims at.
    pub row_tile: u32,
    /// As `ExecutorShape` has them.
    pub steady_rows: u32,
    /// As `ExecutorShape` has them.
    pub busy_rows: u32,
}

impl Default for Profile {
    /// Llama-3.1-8B in bf16 on one H200: 7,504,658,432 weights read a step, 4.3 TB/s and 790 TFLOP/s
    /// as measured there, 32 layers of 8 KV heads of 128, the pool that fits beside the weights. The
    /// overhead makes a step of one row 3.9 ms.
    fn default() -> Self {
        Self {
            name: "llama-3.1-8b-bf16-h200".to_owned(),
            weight_bytes: 15.009e9,
            memory_bytes_per_second: 4.3e12,
            flops_per_row: 13.959e9,
            flops_per_sample: 1.051e9,
            flops_per_second: 790e12,
            kv_bytes_per_token: 131_072.0,
            overhead_us: 400.0,
            kv_pool_tokens: 896_912,
            hidden_size: 4096,
            row_tile: 128,
            steady_rows: 384,
            busy_rows: 1408,
        }
    }
}

impl Profile {
    /// Reads a profile from a JSON file with exactly the fields of this struct.
    ///
    /// # Errors
    /// `SimError::Unreadable`, `Malformed`, `BadProfile`.
    pub fn load(path: &Path) -> Result<Self, SimError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path)
            .map_err(|cause| SimError::Unreadable { path: name.clone(), cause })?;
        let profile: Self = serde_json::from_slice(&bytes)
            .map_err(|cause| SimError::Malformed { path: name, cause })?;
        profile.check()?;
        Ok(profile)
    }

    /// Checks that every number makes sense.
    ///
    /// # Errors
    /// `SimError::BadProfile` names the first that does not.
    pub fn check(&self) -> Result<(), SimError> {
        let bad = |field, value, rule| {
            Err(SimError::BadProfile { name: self.name.clone(), field, value, rule })
        };
        for (field, value) in [
            ("memory_bytes_per_second", self.memory_bytes_per_second),
            ("flops_per_second", self.flops_per_second),
            ("kv_pool_tokens", f64::from(self.kv_pool_tokens)),
            ("hidden_size", f64::from(self.hidden_size)),
            ("row_tile", f64::from(self.row_tile)),
            ("steady_rows", f64::from(self.steady_rows)),
            ("busy_rows", f64::from(self.busy_rows)),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return bad(field, value, "above 0");
            }
        }
        for (field, value) in [
            ("weight_bytes", self.weight_bytes),
            ("flops_per_row", self.flops_per_row),
            ("flops_per_sample", self.flops_per_sample),
            ("kv_bytes_per_token", self.kv_bytes_per_token),
            ("overhead_us", self.overhead_us),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return bad(field, value, "0 or more");
            }
        }
        Ok(())
    }

    /// Context tokens whose keys and values take as long to read as the weights.
    #[must_use]
    pub fn weight_tokens(&self) -> u32 {
        // Infinite where keys and values cost nothing; the cast then gives the largest number.
        (self.weight_bytes / self.kv_bytes_per_token) as u32
    }

    /// Sizes of an executor with this profile: two steps in flight and twice as many slots as running
    /// requests, so that those that leave never hold up those that start.
    #[must_use]
    pub fn shape(
        &self,
        block_size: u32,
        max_num_seqs: u32,
        max_num_batched_tokens: u32,
        vocab_size: u32,
    ) -> ExecutorShape {
        ExecutorShape {
            num_blocks: (self.kv_pool_tokens / block_size).max(1),
            block_size,
            kv_groups: KvGroups::ONE,
            keeps_state: false,
            num_snapshots: 0,
            num_slots: 2 * max_num_seqs,
            max_num_seqs,
            max_num_batched_tokens,
            max_steps_in_flight: 2,
            row_tile: self.row_tile,
            tenant_rows: (self.row_tile + self.row_tile / 2).max(TENANT_ROWS_MIN),
            steady_rows: self.steady_rows,
            busy_rows: self.busy_rows,
            pause: PAUSE,
            vocab_size,
        }
    }

    /// Seconds that the step takes.
    #[must_use]
    pub fn step_seconds(&self, plan: &StepPlan) -> f64 {
        let (mut num_rows, mut num_samples, mut num_context) = (0_u64, 0_u64, 0_u64);
        for row in &plan.rows {
            num_rows += u64::from(row.num_tokens);
            num_samples += u64::from(row.wants.sample != SampleMode::None);
            num_context += u64::from(row.start + row.num_tokens);
        }
        let flops =
            num_rows as f64 * self.flops_per_row + num_samples as f64 * self.flops_per_sample;
        let weights = self.weight_bytes / self.memory_bytes_per_second;
        let kv = num_context as f64 * self.kv_bytes_per_token / self.memory_bytes_per_second;
        weights.max(flops / self.flops_per_second) + kv + self.overhead_us * 1e-6
    }
}

/// The fewest rows that one of several tenants has in a step, where the modelled device has no tile.
const TENANT_ROWS_MIN: u32 = 32;
/// How long a step of `busy_rows` may take on the modelled device.
const PAUSE: Micros = Micros(30_000);

#[cfg(test)]
mod tests {
    use ingle_core::{PlanRow, SlotId, StepId, TokenSource, Wants};

    use super::*;

    fn step(num_seqs: u32, context: u32) -> StepPlan {
        let row = |slot| PlanRow {
            slot: SlotId::first(slot),
            start: context - 1,
            num_tokens: 1,
            source: TokenSource::LastSampled,
            new_blocks: Vec::new(),
            wants: Wants { sample: SampleMode::Now, ..Wants::default() },
        };
        StepPlan { id: StepId(1), rows: (0..num_seqs).map(row).collect(), ..StepPlan::default() }
    }

    #[test]
    fn test_default_profile_gives_the_published_floor_and_the_overhead() {
        let profile = Profile::default();
        profile.check().unwrap();
        // Floors worked out by hand for this model and card, plus 0.4 ms.
        for (num_seqs, context, floor_ms) in
            [(1, 256, 3.50), (64, 256, 3.99), (200, 256, 5.36), (200, 1024, 10.04), (8, 8192, 5.49)]
        {
            let ms = profile.step_seconds(&step(num_seqs, context)) * 1e3;
            assert!((ms - 0.4 - floor_ms).abs() < 0.01, "{num_seqs} x {context}: {ms} ms");
        }
    }

    #[test]
    fn test_profile_files_are_checked() {
        let path = std::env::temp_dir().join(format!("ingle-profile-{}.json", std::process::id()));
        let mut profile = Profile { name: "half".to_owned(), ..Profile::default() };
        std::fs::write(&path, serde_json::to_vec(&profile).unwrap()).unwrap();
        assert_eq!(Profile::load(&path).unwrap(), profile);
        profile.flops_per_second = 0.0;
        std::fs::write(&path, serde_json::to_vec(&profile).unwrap()).unwrap();
        let error = Profile::load(&path).unwrap_err().to_string();
        assert_eq!(error, "profile half: flops_per_second is 0; it must be above 0");
        std::fs::write(&path, r#"{"name": "x", "wait_bytes": 1}"#).unwrap();
        let error = Profile::load(&path).unwrap_err().to_string();
        assert!(error.contains("wait_bytes"), "{error}");
        std::fs::remove_file(&path).unwrap();
        let error = Profile::load(&path).unwrap_err().to_string();
        assert!(error.contains("ingle-profile-"), "{error}");
    }

    #[test]
    fn test_weights_are_as_long_as_so_much_context() {
        assert_eq!(Profile::default().weight_tokens(), 114_509);
        let free = Profile { kv_bytes_per_token: 0.0, ..Profile::default() };
        assert_eq!(free.weight_tokens(), u32::MAX);
    }

    #[test]
    fn test_shape_follows_the_pool() {
        let shape = Profile::default().shape(64, 256, 2048, 1000);
        assert_eq!((shape.num_blocks, shape.num_slots, shape.row_tile), (14_014, 512, 128));
    }
}
