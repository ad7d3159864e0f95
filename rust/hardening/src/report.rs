//! What of the lock-down is in force, and what is missing. Pure.

use serde::Serialize;

/// All layers that were tried, in order.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Each with its name.
    pub layers: Vec<Layer>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// One word, the label of the metric.
    pub name: &'static str,
    /// Whether it is in force.
    pub on: bool,
    /// How, or why not.
    pub what: String,
}

impl Report {
    /// A layer in force.
    pub(crate) fn on(&mut self, name: &'static str, what: impl Into<String>) {
        self.layers.push(Layer { name, on: true, what: what.into() });
    }

    /// A layer that is missing, and why.
    pub(crate) fn missing(&mut self, name: &'static str, what: impl Into<String>) {
        self.layers.push(Layer { name, on: false, what: what.into() });
    }

    /// What is missing, each as `name: why`.
    #[must_use]
    pub fn lacks(&self) -> Vec<String> {
        let missing = self.layers.iter().filter(|layer| !layer.on);
        missing.map(|layer| format!("{}: {}", layer.name, layer.what)).collect()
    }
}
