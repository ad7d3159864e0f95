//! What only a GPU has: graphs of whole steps, recorded beside the first ones, and counts of how steps were launched.

use std::fmt::Write as _;
use std::sync::Arc;

use ingle_cuda::{GraphSeal, LaunchCounters, LaunchStats};

use crate::device::built::DeviceOwn;

/// Of one executor.
#[derive(Debug, Default)]
pub(super) struct CudaOwn {
    pub(super) launches: Arc<LaunchCounters>,
    /// `None` where no graphs are recorded.
    pub(super) graphs: Option<GraphSeal>,
}

impl DeviceOwn for CudaOwn {
    fn render(&self, labels: &str, out: &mut String) {
        render(&self.launches.read(), labels, out);
    }

    fn seal(&self) {
        if let Some(graphs) = &self.graphs {
            graphs.close();
        }
    }
}

fn render(stats: &LaunchStats, labels: &str, out: &mut String) {
    let name = "ingle:device_graphs";
    let _ = writeln!(out, "# HELP {name} Graphs of whole steps.\n# TYPE {name} gauge");
    for (state, value) in [
        ("ready", stats.graphs_ready),
        ("waiting", stats.graphs_waiting),
        ("failed", stats.graphs_failed),
    ] {
        let _ = writeln!(out, "{name}{{{labels},state=\"{state}\"}} {value}");
    }
    let name = "ingle:device_steps_total";
    let help = "Steps that the device got, as one graph or kernel by kernel.";
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
    for (launch, value) in [("graph", stats.steps_replayed), ("plain", stats.steps_plain)] {
        let _ = writeln!(out, "{name}{{{labels},launch=\"{launch}\"}} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_graphs_and_launches_are_shown() {
        let mut text = String::new();
        CudaOwn::default().render("engine=\"0\"", &mut text);
        assert!(text.contains("ingle:device_steps_total{engine=\"0\""));
        let stats = LaunchStats {
            graphs_ready: 1,
            graphs_waiting: 2,
            graphs_failed: 3,
            steps_replayed: 4,
            steps_plain: 5,
        };
        let mut text = String::new();
        render(&stats, "e=\"0\"", &mut text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "ingle:device_graphs{e=\"0\",state=\"ready\"} 1",
                "ingle:device_graphs{e=\"0\",state=\"waiting\"} 2",
                "ingle:device_graphs{e=\"0\",state=\"failed\"} 3",
                "ingle:device_steps_total{e=\"0\",launch=\"graph\"} 4",
                "ingle:device_steps_total{e=\"0\",launch=\"plain\"} 5",
            ]
        );
    }
}
