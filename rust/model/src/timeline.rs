//! When each phase of a load ran, and on which thread. Any thread.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One phase of a load.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What was done, for people.
    pub name: &'static str,
    /// The thread's name, or its number where it has none.
    pub thread: String,
    /// When it began.
    pub began: Instant,
    /// How long it took.
    pub time: Duration,
}

/// Collects phases, which may run beside each other.
#[derive(Debug, Default)]
pub struct Timeline(Mutex<Vec<Phase>>);

impl Timeline {
    /// Runs the work and keeps when it ran, whether or not it succeeds.
    pub fn time<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        let thread = std::thread::current();
        let thread = thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_owned);
        let phase = Phase { name, thread, began, time: began.elapsed() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(phase);
        result
    }

    /// The phases, in the order in which they ended.
    pub fn into_phases(self) -> Vec<Phase> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_carry_their_thread_and_lie_in_each_other() {
        let timeline = Timeline::default();
        let failed: Result<(), ()> = timeline.time("outer", || {
            std::thread::scope(|scope| {
                let builder = std::thread::Builder::new().name("helper".to_owned());
                let inner = builder.spawn_scoped(scope, || timeline.time("inner", || 3)).unwrap();
                assert_eq!(inner.join().unwrap(), 3);
            });
            Err(())
        });
        assert!(failed.is_err());
        let phases = timeline.into_phases();
        let names: Vec<_> = phases.iter().map(|phase| phase.name).collect();
        assert_eq!(names, ["inner", "outer"]);
        assert_eq!(phases[0].thread, "helper");
        assert!(phases[1].began <= phases[0].began && phases[0].time <= phases[1].time);
    }
}
