//! [4] An engine thread's use of the pacer: the next step is held back until the running one is about to end.

use ingle_core::{ExecutorShape, Micros, Pacer};

use crate::clock::Clock;
use crate::inbox::Wait;

/// When the next step is planned.
pub(crate) struct Pace {
    /// `None` where steps are planned at once.
    pacer: Option<Pacer>,
    /// When the step that is held back will be planned.
    plan_at: Option<Micros>,
}

impl Pace {
    /// Turns end with steps, and models that wait for theirs cannot know when one will: where the device is shared,
    /// steps are planned at once.
    pub(crate) fn new(shape: &ExecutorShape, shares_device: bool) -> Self {
        Self { pacer: Pacer::new(shape).filter(|_| !shares_device), plan_at: None }
    }

    /// Whether the next step is planned now. One in flight that waits for masks ends late, and what was learnt from
    /// others says nothing about it.
    pub(crate) fn plans(&mut self, now: Micros, waits_for_masks: bool) -> bool {
        let pacer = self.pacer.as_mut().filter(|_| !waits_for_masks);
        self.plan_at = pacer.and_then(|pacer| pacer.hold(now));
        self.plan_at.is_none()
    }

    /// What to wait for while a step is held back.
    pub(crate) fn wait(&self, clock: Clock) -> Option<Wait> {
        self.plan_at.map(|at| Wait::ForStepUntil(clock.instant(at)))
    }

    pub(crate) fn submitted(&mut self, num_rows: u32, now: Micros) {
        if let Some(pacer) = &mut self.pacer {
            pacer.submitted(num_rows, now);
        }
    }

    /// The oldest step has ended; nothing is learnt from one that failed.
    pub(crate) fn ended(&mut self, is_well: bool, now: Micros) {
        match &mut self.pacer {
            Some(pacer) if is_well => pacer.completed(now),
            Some(pacer) => pacer.failed(now),
            None => {}
        }
    }

    /// The round that began at `since` is over; during it nothing could be planned.
    pub(crate) fn end_round(&mut self, since: Micros, clock: Clock) {
        if let (Some(pacer), Some(_)) = (&mut self.pacer, self.plan_at) {
            pacer.was_away(Micros(clock.now().0.saturating_sub(since.0)));
        }
    }
}
