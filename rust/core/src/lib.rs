//! The engine's state machine: admission, batching, KV blocks and the contract with executors.
//!
//! No I/O, no clock, no threads, no device. Time and randomness come in as arguments, so that a
//! simulator can replay any history from a seed. Nothing in here may block or allocate on a device.
#![forbid(unsafe_code)]

mod batcher;
mod core_event;
mod executor;
mod fair_share;
mod flight;
mod growth;
mod ids;
mod kv;
mod limits;
mod live_request;
mod recount;
mod request;
mod request_table;
mod sampling;
mod scheduler;
mod shared_prefix;
mod starts;
mod step_commit;
mod step_output;
mod step_plan;
mod tenants;
mod waiting_queue;

pub use core_event::{CoreEvent, TokenList};
pub use executor::{CompletionSink, Executor, ExecutorError, ExecutorShape, StepCompletion};
pub use flight::LateRow;
pub use ids::{BlockId, Micros, RequestId, SlotId, StepId, TenantId, TokenId};
pub use limits::{AdmitError, Limits};
pub use recount::{Counters, SchedulerStats};
pub use request::{FinishReason, NewRequest, RequestFault, RequestKind, StopRules};
pub use sampling::SamplingParams;
pub use scheduler::{Scheduler, SchedulerConfig};
pub use step_output::{RowOutput, RowStatus, StepOutput, TokenLogProbs};
pub use step_plan::{
    OpenedSlot, PlanRow, PooledRow, Pooling, RowMask, SampleMode, StepPlan, TokenSource, Wants,
};
