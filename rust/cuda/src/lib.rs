//! The CUDA executor: the only crate that talks to a GPU.
//!
//! `CudaExecutor::load` loads a checkpoint onto a device and returns an `ingle_core::Executor`.
//! From the bottom up: `sys` (declarations), the owning types (context, stream, memory, arena,
//! module, graph), then compile, gemm and loader, then model and executor.
//!
//! Threads: the loading thread (`start`, `setup`, `loader`, `tune`), the engine thread (`executor`,
//! `slots`, `metadata`, `forward`, `head`), the capture thread (`graphs`) and the waiter
//! (`waiter`).

mod arena;
mod attention_kinds;
mod attention_launch;
mod budget;
mod buffers;
mod builds;
mod cache;
mod compile;
mod config;
mod context;
mod contract;
mod delta_net;
mod device_slice;
mod dims;
mod divided;
mod dtypes;
mod error;
mod exchange;
mod executor;
mod executor_control;
mod experts;
mod extras;
#[cfg(test)]
mod fake;
mod forward;
mod four_bit;
mod four_bit_gemm;
mod four_bit_tile;
mod four_bit_wgmma;
mod gemm;
mod graph;
mod graphs;
mod group;
mod head;
mod kernels;
mod kv_groups;
mod kv_pool;
mod landmarks;
mod late_samples;
mod launch;
mod launches;
mod limits;
mod loader;
mod matrix;
mod memory;
mod metadata;
mod missing_parts;
mod model;
mod model_shapes;
mod module;
mod operands;
mod parts;
mod picking;
mod prebuilt;
mod probe;
mod product;
mod program;
mod prompt_attention;
mod prompt_launch;
mod rank;
mod registry;
mod rope;
mod rope_build;
mod rope_tables;
mod row_costs;
mod same_bits;
mod setup;
mod shapes;
mod sleep;
mod slots;
mod start;
mod state_pool;
mod step_shapes;
mod stream;
mod stream_gemm;
mod stream_tile;
mod supported;
mod sys;
mod tensor_map;
mod token_input;
mod tune;
mod variant;
mod waiter;
mod weight_layout;
mod weight_memory;
mod weights;

pub use budget::MemoryBudget;
pub use config::{CudaConfig, DeviceType, LateSize, LoadTurns};
pub use contract::contract_header;
pub use error::CudaError;
pub use executor::CudaExecutor;
pub use graphs::{GraphSeal, GraphStats, WarningSink};
pub use launches::{LaunchCounters, LaunchStats};
pub use missing_parts::missing_part;
pub use prebuilt::write_prebuilt_kernels;
pub use probe::{DeviceProbe, device_count, probe};
pub use slots::{MAX_LOG_PROBS, MAX_LOGIT_BIAS_ENTRIES, MAX_MIN_TOKENS_BANNED};
pub use start::StartReport;
pub use state_pool::state_bytes;
pub use sys::LibraryPaths;
