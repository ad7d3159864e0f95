//! The engine's state machine: admission, batching, KV blocks and the contract with executors.
//!
//! No I/O, clock, threads or device. Time and randomness are arguments, so a simulator can replay any
//! history from a seed. Nothing here may block or allocate on a device.
#![forbid(unsafe_code)]

mod admission;
mod config;
mod controls;
mod counts;
mod device_memory;
mod device_pool;
mod device_time;
mod executor;
mod executor_shape;
mod fair_share;
mod flight;
mod ids;
mod kv;
mod late_rows;
mod limits;
mod live_request;
mod pacing;
mod pool_policy;
mod pool_size;
mod preemption;
mod prefill;
mod recount;
mod request;
mod request_blocks;
mod request_end;
mod request_table;
mod row_budget;
mod running;
mod sampling;
mod scheduler;
mod shared_prefix;
mod slots;
mod snapshots;
mod starts;
mod step_commit;
mod step_failure;
mod step_time;
mod tenants;
mod ticket;
mod waiting_queue;
mod windows;

pub use config::SchedulerConfig;
pub use counts::{Counters, SchedulerStats};
pub use device_memory::{DeviceMemory, ModelMemory, Move};
pub use device_pool::PoolMemory;
pub use device_time::{DeviceTime, LaneId, Turn};
pub use executor::{
    CompletionSink, Executor, ExecutorError, OpenedSlot, PlanRow, PooledRow, Pooling, ResizeSink,
    RestSink, RowMask, RowOutput, RowStatus, SampleMode, StateCopies, StateCopy, StepCompletion,
    StepOutput, StepPlan, TokenLogProbs, TokenSource, Wants,
};
pub use executor_shape::{ExecutorShape, KvMemory, SleepLevel};
pub use ids::{BlockId, Micros, RequestId, SlotId, SnapshotId, StepId, TenantId, TokenId};
pub use kv::{CachedBlock, ChainHasher, KvGroups, MAX_KV_GROUPS, Parent, PrefixWatcher};
pub use late_rows::LateRow;
pub use limits::{AdmitError, Limits};
pub use pacing::Pacer;
pub use request::{FinishReason, NewRequest, RequestFault, RequestKind, StopRules};
pub use sampling::{
    NUM_SAMPLING_FIELDS, NumberRange, SAMPLING_FIELDS, SamplingField, SamplingParams,
};
pub use scheduler::Scheduler;
pub use step_commit::{CoreEvent, TokenList};
