//! The CPU executor: weights exactly as stored, or as `--quantization` makes them; activations, KV
//! and accumulation in f32, except what `CpuPrecision::Fast` rounds.
//!
//! Three guarantees hold in every file. A row gets the same bits whatever else is in the batch,
//! however its prompt is chunked and wherever its blocks are. The weights in memory are the numbers
//! of the checkpoint, or those that `ingle_model::quantise_rows` makes of them. An idle executor
//! uses no CPU.
//!
//! Unsafe code: intrinsics (`gemm/avx512.rs`, `gemm/avx2.rs` and their neighbours), calls of functions compiled for a
//! path (`vector_path.rs`), memory whose disjoint parts are shared by workers (`shared.rs`), the
//! pool's job (`pool.rs`), views of bytes as numbers (`aligned.rs`).

mod aligned;
mod attention;
mod block_layout;
mod buffers;
mod config;
mod delta_net;
mod elementwise;
mod error;
mod executor;
mod forward;
mod fp8_layout;
mod gemm;
mod grouped_layout;
mod grouped_reader;
mod kv_cache;
mod matrix;
mod matrix_reader;
mod model;
mod moe;
mod panel;
mod pool;
mod prepare;
mod rope;
mod rounding;
mod rows;
mod sampler;
mod scratch;
mod shared;
mod slot;
mod step;
#[cfg(test)]
mod testing;
mod threads;
mod unpack;
mod vector_path;
mod weight_store;
mod weights;

pub use config::{
    CpuConfig, CpuPath, CpuPrecision, kv_bytes_per_block, kv_groups, state_bytes_per_slot,
};
pub use error::CpuError;
pub use executor::CpuExecutor;
pub use model::{Model, Sequence};
pub use panel::LOGIT_ROWS;
pub use threads::physical_cores;
pub use vector_path::{fast_lacks, usable_paths};
