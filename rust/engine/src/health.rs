//! What `/health` shows: of the process, and of each engine where there are several. Any thread.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::engine::Engine;
use crate::shared::{EngineState, Shared};
use crate::shared_device::DevicePlace;

/// The state of one engine, or of several together.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Health {
    status: Status,
    steps: u64,
    running: u64,
    in_system: u64,
    standstill_us: u64,
}

/// Worse ones last: the process is as bad as its worst engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Status {
    Ok,
    /// It takes no requests and is well.
    Asleep,
    Draining,
    Stuck,
    Dead,
}

impl Engine {
    /// JSON: status, step counter, running, waiting; with several engines also each one's. `stuck`
    /// means that work waits and nothing has moved for the time set in the options; measured here, no
    /// timer runs.
    #[must_use]
    pub fn health(&self) -> Vec<u8> {
        let place = self.device_place.as_ref().and_then(DevicePlace::shown).map(|(word, _)| word);
        // A model that waits for memory does not stand still by its own fault; its requests have a limit.
        let is_away = place.is_some_and(|word| word != "awake");
        let limit_us = if is_away { u64::MAX } else { self.health_stall_us };
        let each: Vec<Health> =
            self.engines.iter().map(|engine| Health::of(engine, limit_us)).collect();
        let in_system = u64::from(self.front.room.in_system());
        let mut document = together(&each, in_system).document();
        document["capacity"] = json!(self.front.served.capacity);
        if let Some(word) = place {
            document["memory"] = json!(word);
        }
        if each.len() > 1 {
            document["engines"] = each.iter().map(Health::document).collect();
        }
        document.to_string().into_bytes()
    }
}

impl Health {
    fn of(engine: &Shared, limit_us: u64) -> Self {
        let standstill_us = engine.standstill_us();
        Self {
            status: Status::of(
                engine.state(),
                engine.sleep_level().is_some(),
                standstill_us,
                limit_us,
            ),
            steps: engine.metrics.steps.load(Ordering::Relaxed),
            running: engine.metrics.gauges.running.load(Ordering::Relaxed),
            in_system: u64::from(engine.num_choices()),
            standstill_us,
        }
    }

    fn document(&self) -> Value {
        json!({
            "status": self.status.word(),
            "steps": self.steps,
            "running": self.running,
            "waiting": self.in_system.saturating_sub(self.running),
            "in_system": self.in_system,
            "standstill_s": self.standstill_us as f64 / 1e6,
        })
    }
}

/// `in_system`: choices that have been accepted; some may not have an engine yet.
fn together(each: &[Health], in_system: u64) -> Health {
    Health {
        status: each.iter().map(|health| health.status).max().unwrap_or(Status::Dead),
        steps: each.iter().map(|health| health.steps).sum(),
        running: each.iter().map(|health| health.running).sum(),
        in_system,
        standstill_us: each.iter().map(|health| health.standstill_us).max().unwrap_or(0),
    }
}

impl Status {
    /// `standstill_us` counts only while work waits.
    fn of(state: EngineState, is_asleep: bool, standstill_us: u64, limit_us: u64) -> Self {
        match state {
            EngineState::Dead | EngineState::Stopped => Self::Dead,
            _ if standstill_us > limit_us => Self::Stuck,
            EngineState::Draining => Self::Draining,
            EngineState::Serving if is_asleep => Self::Asleep,
            EngineState::Serving => Self::Ok,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Asleep => "asleep",
            Self::Draining => "draining",
            Self::Stuck => "stuck",
            Self::Dead => "dead",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_stuck_only_while_work_waits_for_longer_than_the_limit() {
        let of = |state, standstill_us| Status::of(state, false, standstill_us, 30).word();
        assert_eq!(Status::of(EngineState::Serving, true, 0, 30).word(), "asleep");
        assert_eq!(Status::of(EngineState::Dead, true, 0, 30).word(), "dead");
        assert_eq!(of(EngineState::Serving, 30), "ok");
        assert_eq!(of(EngineState::Serving, 31), "stuck");
        assert_eq!(of(EngineState::Draining, 30), "draining");
        assert_eq!(of(EngineState::Draining, 31), "stuck");
        assert_eq!(of(EngineState::Dead, 0), "dead");
        assert_eq!(of(EngineState::Stopped, 0), "dead");
    }

    #[test]
    fn the_process_is_as_bad_as_its_worst_engine() {
        let health = |status, standstill_us| Health {
            status,
            steps: 5,
            running: 2,
            in_system: 3,
            standstill_us,
        };
        let (well, stuck) = (health(Status::Ok, 7), health(Status::Stuck, 40));
        let both = together(&[well, stuck], 9);
        let sum = Health { steps: 10, running: 4, in_system: 9, ..stuck };
        assert_eq!(both, sum);
        assert_eq!(together(&[stuck, health(Status::Dead, 0)], 9).status, Status::Dead);
        assert_eq!(both.document()["waiting"], 5);
    }
}
