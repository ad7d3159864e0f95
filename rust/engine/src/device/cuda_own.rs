//! What only a GPU has: graphs of whole steps, recorded beside the first ones, and counts of how steps were launched.

use std::sync::Arc;

use ingle_cuda::{GraphSeal, LaunchCounters, LaunchStats};

use crate::device::built::{DeviceCount, DeviceOwn};

/// Of one executor.
#[derive(Debug, Default)]
pub(super) struct CudaOwn {
    pub(super) launches: Arc<LaunchCounters>,
    /// `None` where no graphs are recorded.
    pub(super) graphs: Option<GraphSeal>,
}

impl DeviceOwn for CudaOwn {
    fn counts(&self) -> Vec<DeviceCount> {
        counts(&self.launches.read())
    }

    fn seal(&self) -> bool {
        self.graphs.as_ref().is_none_or(GraphSeal::close)
    }
}

fn counts(stats: &LaunchStats) -> Vec<DeviceCount> {
    vec![
        DeviceCount {
            name: "ingle:device_graphs",
            help: "Graphs of whole steps.",
            kind: "gauge",
            label: "state",
            values: vec![
                ("ready", stats.graphs_ready),
                ("waiting", stats.graphs_waiting),
                ("failed", stats.graphs_failed),
            ],
        },
        DeviceCount {
            name: "ingle:device_steps_total",
            help: "Steps that the device got, as one graph or kernel by kernel.",
            kind: "counter",
            label: "launch",
            values: vec![("graph", stats.steps_replayed), ("plain", stats.steps_plain)],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_graphs_and_launches_are_shown() {
        let names: Vec<&str> =
            CudaOwn::default().counts().iter().map(|family| family.name).collect();
        assert_eq!(names, ["ingle:device_graphs", "ingle:device_steps_total"]);
        let stats = LaunchStats {
            graphs_ready: 1,
            graphs_waiting: 2,
            graphs_failed: 3,
            steps_replayed: 4,
            steps_plain: 5,
        };
        let values: Vec<(&str, u64)> =
            counts(&stats).into_iter().flat_map(|family| family.values).collect();
        assert_eq!(
            values,
            [("ready", 1), ("waiting", 2), ("failed", 3), ("graph", 4), ("plain", 5)]
        );
    }
}
