//! [4] An engine thread's part of sharing a device with other models' engines: it plans in its turn only.

use ingle_core::{StepPlan, Turn};

use crate::engine_thread::EngineThread;
use crate::rest::Wakefulness;

impl EngineThread {
    /// The next step, if there is one and it is this engine's turn.
    pub(crate) fn plan_in_turn(&mut self) -> Option<StepPlan> {
        let turns = self.turns.as_mut()?;
        if self.scheduler.is_full() {
            return None;
        }
        if self.scheduler.is_idle() {
            turns.idle();
        }
        if self.scheduler.is_idle() || self.wakefulness != Wakefulness::Awake {
            turns.pass();
            return None;
        }
        let Turn::Now(most_rows) = turns.ask() else { return None };
        self.scheduler.limit_rows(most_rows.unwrap_or(u32::MAX));
        let plan = self.scheduler.plan(self.committer.now);
        if plan.is_none() {
            turns.pass();
        }
        plan
    }

    /// The oldest step no longer uses the device.
    pub(crate) fn end_turn(&self) {
        if let Some(turns) = &self.turns {
            turns.completed();
        }
    }
}
