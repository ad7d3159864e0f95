//! The engine's state machine: admission, batching, KV blocks and the contract with executors.
//!
//! No I/O, no clock, no threads, no device. Time and randomness come in as arguments, so that a
//! simulator can replay any history from a seed. Nothing in here may block or allocate on a device.
#![forbid(unsafe_code)]

mod executor;
mod ids;
mod request;
mod sampling;
mod step_output;
mod step_plan;

pub use executor::{CompletionSink, Executor, ExecutorError, ExecutorShape, StepCompletion};
pub use ids::{BlockId, Micros, RequestId, SlotId, StepId, TenantId, TokenId};
pub use request::{FinishReason, NewRequest, RequestFault, RequestKind, StopRules};
pub use sampling::SamplingParams;
pub use step_output::{RowOutput, RowStatus, StepOutput, TokenLogProbs};
pub use step_plan::{OpenedSlot, PlanRow, PooledRow, Pooling, RowMask, SampleMode, StepPlan, TokenSource, Wants};
