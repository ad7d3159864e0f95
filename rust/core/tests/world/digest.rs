//! A digest of what a scheduler decided: equal digests mean equal plans and equal events.

use ingle_core::{CoreEvent, StepPlan};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A chain of hashes: each addition also depends on everything before it.
#[derive(Clone, Copy, Default)]
pub struct Digest(u64);

impl Digest {
    pub fn value(self) -> u64 {
        self.0
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    /// Everything that the scheduler decides; sampling parameters only pass through it.
    pub fn add_plan(&mut self, plan: &StepPlan) {
        self.add(format!("{} {:?} {:?}", plan.id, plan.closed, plan.rows).as_bytes());
        if plan.states != Default::default() {
            self.add(format!("{:?}", plan.states).as_bytes());
        }
        for opened in &plan.opened {
            let tokens = (&opened.prompt, &opened.generated);
            self.add(format!("{} {tokens:?} {:?}", opened.slot, opened.cached_blocks).as_bytes());
        }
    }

    pub fn add_event(&mut self, event: &CoreEvent) {
        self.add(format!("{event:?}").as_bytes());
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
