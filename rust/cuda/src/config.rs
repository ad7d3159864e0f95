//! The executor's settings. Plain data.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{CudaError, LibraryPaths};

/// Settings of one CUDA executor. Limits are checked by `CudaExecutor::load`.
#[derive(Clone, Debug)]
pub struct CudaConfig {
    /// Which device, as `cuda:N`.
    pub device: u32,
    /// Most of the card's memory that this process may hold, 0 to 1.
    pub gpu_memory_utilization: f32,
    /// Exactly this much for the KV pool, whatever the utilisation says.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Tokens a KV block: a power of two from 4 to 256.
    pub block_size: u32,
    /// Most rows of a step, at most 1024.
    pub max_num_seqs: u32,
    /// Most token rows of a step.
    pub max_num_batched_tokens: u32,
    /// Longest context served.
    pub max_model_len: u32,
    /// Refuse to load if the KV pool holds less than that; else the caller serves what it holds.
    pub must_hold_max_model_len: bool,
    /// Ids from here on are never sampled.
    pub sample_vocab_size: LateSize,
    /// Type of weights and KV on the device.
    pub dtype: DeviceType,
    /// Plain launches only.
    pub enforce_eager: bool,
    /// A row's numbers do not depend on the other rows of its step; slower.
    pub deterministic: bool,
    /// Where compiled kernels and measured algorithms are kept; `None` keeps nothing.
    pub cache_dir: Option<PathBuf>,
    /// Kernels built ahead (`write_prebuilt_kernels`), for machines without NVRTC.
    pub prebuilt_kernels: Option<PathBuf>,
    /// Where NVIDIA's libraries are.
    pub libraries: LibraryPaths,
    /// Weights and KV may leave the card and come back: a copy of the weights is kept in pinned host memory.
    pub can_sleep: bool,
    /// Threads that read weights.
    pub load_threads: u32,
    /// Shared by executors that are loaded beside each other.
    pub turns: Arc<LoadTurns>,
}

/// The tokenizer's size, which may come while the device loads: kernels need it, memory and weights do not.
#[derive(Clone, Debug, Default)]
pub struct LateSize(Arc<OnceLock<Option<u32>>>);

impl LateSize {
    /// One that has come.
    #[must_use]
    pub fn known(size: u32) -> Self {
        Self(Arc::new(OnceLock::from(Some(size))))
    }

    /// Lets the load go on. `None` ends it: the size will not come. What comes after the first changes nothing.
    pub fn set(&self, size: Option<u32>) {
        let _ = self.0.set(size);
    }

    /// Blocks until it is known.
    pub(crate) fn wait(&self) -> Result<u32, CudaError> {
        self.0.wait().ok_or(CudaError::GivenUp)
    }
}

/// Lets executors that are loaded beside each other onto several cards prepare what the cache keeps one
/// after the other: the first compiles and measures, the others find it stored. So all of them run the
/// same algorithms, which give the same bits.
#[derive(Debug, Default)]
pub struct LoadTurns {
    kernels: Mutex<()>,
    algorithms: Mutex<()>,
}

impl LoadTurns {
    /// Held while kernels are compiled.
    pub(crate) fn kernels(&self) -> MutexGuard<'_, ()> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while algorithms are measured.
    pub(crate) fn algorithms(&self) -> MutexGuard<'_, ()> {
        self.algorithms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for CudaConfig {
    fn default() -> Self {
        Self {
            device: 0,
            gpu_memory_utilization: 0.9,
            kv_cache_memory_bytes: None,
            block_size: 64,
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            max_model_len: 8192,
            must_hold_max_model_len: false,
            sample_vocab_size: LateSize::known(u32::MAX),
            dtype: DeviceType::Auto,
            enforce_eager: false,
            deterministic: false,
            cache_dir: None,
            prebuilt_kernels: None,
            libraries: LibraryPaths::default(),
            can_sleep: false,
            load_threads: 12,
            turns: Arc::default(),
        }
    }
}

/// `--dtype`: how weights and KV are kept on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceType {
    /// f16 stays f16, everything else becomes bf16.
    #[default]
    Auto,
    /// bf16.
    Bf16,
    /// f16.
    F16,
}
