//! The engine's state machine: admission, batching, KV blocks and the contract with executors.
//!
//! No I/O, clock, threads or device. Time and randomness are arguments, so a simulator can replay any
//! history from a seed. Nothing here may block or allocate on a device.
#![forbid(unsafe_code)]

mod batcher;
mod config;
mod core_event;
mod counts;
mod device_memory;
mod device_time;
mod draft;
mod executor;
mod fair_share;
mod flight;
mod ids;
mod kv;
mod limits;
mod live_request;
mod preemption;
mod recount;
mod request;
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
mod step_output;
mod step_plan;
mod step_time;
mod tenants;
mod ticket;
mod waiting_queue;
mod windows;

pub use config::SchedulerConfig;
pub use core_event::{CoreEvent, TokenList};
pub use counts::{Counters, SchedulerStats};
pub use device_memory::{DeviceMemory, ModelMemory, Move};
pub use device_time::{DeviceTime, LaneId, Turn};
pub use executor::{
    CompletionSink, Executor, ExecutorError, ExecutorShape, RestSink, SleepLevel, StepCompletion,
};
pub use flight::LateRow;
pub use ids::{BlockId, Micros, RequestId, SlotId, SnapshotId, StepId, TenantId, TokenId};
pub use kv::{CachedBlock, ChainHasher, KvGroups, MAX_KV_GROUPS, Parent, PrefixWatcher};
pub use limits::{AdmitError, Limits};
pub use request::{FinishReason, NewRequest, RequestFault, RequestKind, StopRules};
pub use sampling::{
    NUM_SAMPLING_FIELDS, NumberRange, SAMPLING_FIELDS, SamplingField, SamplingParams,
};
pub use scheduler::Scheduler;
pub use step_output::{RowOutput, RowStatus, StepOutput, TokenLogProbs};
pub use step_plan::{
    OpenedSlot, PlanRow, PooledRow, Pooling, RowMask, SampleMode, StateCopies, StateCopy, StepPlan,
    TokenSource, Wants,
};
