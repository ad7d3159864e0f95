//! [7] Steps that failed, and results that are not finite: what was computed from them is computed
//! again. Engine thread only.

use crate::ids::RequestIndex;
use crate::live_request::Phase;
use crate::scheduler::Scheduler;
use crate::{CoreEvent, FinishReason, RequestFault, StepId};

impl Scheduler {
    /// Takes back a step that failed, or that could not be submitted. Its requests end with an error;
    /// others that were about to build on its blocks are computed again. Later steps stay in flight.
    ///
    /// # Panics
    /// If the step is not in flight.
    pub fn fail_step(&mut self, id: StepId, fault: RequestFault, events: &mut Vec<CoreEvent>) {
        let Some(step) = self.in_flight.remove(id) else {
            unreachable!("step {id} failed and is not in flight")
        };
        self.snapshots.forget_since(id);
        for row in &step.rows {
            self.snapshots.drop_pending(row.snapshot);
            self.forget_blocks(row.request, id);
            if self.requests[row.request].phase != Phase::Leaving {
                self.end(row.request, FinishReason::Error(fault.clone()), None, events);
            }
            self.complete_row(row.request);
        }
        self.recompute_dependents(id);
        self.in_flight.recycle(step);
        self.check_slots();
    }

    /// The request's blocks may hold NaN: no request may find them, and those that have just done so
    /// start anew, also if the request itself has ended.
    pub(crate) fn drop_not_finite(
        &mut self,
        index: RequestIndex,
        step: StepId,
        is_wanted: bool,
        events: &mut Vec<CoreEvent>,
    ) {
        self.forget_blocks(index, StepId(0));
        self.snapshots.forget_since(StepId(0));
        if is_wanted {
            self.end(index, FinishReason::Error(RequestFault::NotFinite), None, events);
        }
        self.recompute_dependents(step);
    }

    /// Requests that took blocks which this step, or a later one still in flight, fills: what they
    /// computed since may be worthless, though nothing of it has been committed.
    fn recompute_dependents(&mut self, failed: StepId) {
        let depends = |scheduler: &Self, index: RequestIndex| {
            scheduler.requests[index].depends_on.is_some_and(|step| step >= failed)
        };
        for place in (0..self.running.len()).rev() {
            let index = self.running.at(place);
            if depends(self, index) {
                self.requests[index].is_tainted = true;
                self.preempt(index);
            }
        }
        for index in self.running.preempted() {
            if depends(self, index) {
                self.requests[index].is_tainted = true;
            }
        }
    }
}
