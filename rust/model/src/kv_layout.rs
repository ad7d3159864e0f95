//! Which layers keep their keys and values together, and for how long. Pure, at load.
//!
//! Layers with the same window form a class. A class is cut into groups of equally many layers, the same
//! number for all classes, so that a KV block of any group has the same size and all groups share one
//! pool. Where a class does not divide evenly, its last group has empty places.

use crate::{LayerSpec, ModelSpec};

/// How a model's layers are grouped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// The window of each group's layers; `None` where they see everything, which comes first.
    pub windows: Vec<Option<u32>>,
    /// Layers of a group, empty places included.
    pub layers_per_group: usize,
    /// Each layer's group and its place in it; of no meaning for a layer that keeps no keys.
    pub places: Vec<KvPlace>,
}

/// Where a layer's keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlace {
    /// Index into `KvLayout::windows`.
    pub group: usize,
    /// Below `KvLayout::layers_per_group`.
    pub index: usize,
}

/// Most groups of a model: what executors and the core have room for.
const MAX_GROUPS: usize = 8;
const NOWHERE: KvPlace = KvPlace { group: 0, index: 0 };
/// A sequence of so many tokens takes least memory.
const TYPICAL_TOKENS: u32 = 8192;

impl KvLayout {
    /// The layout with which a sequence of 8,192 tokens, or as many as the model sees, takes least memory;
    /// of several, the one with the fewest groups.
    #[must_use]
    pub fn of(spec: &ModelSpec) -> Self {
        let keeps_keys = |layer: &&LayerSpec| layer.delta_net.is_none();
        let windows = spec.layers.iter().filter(keeps_keys).map(|layer| layer.window);
        let mut layout = Self::new(&windows.collect::<Vec<_>>(), spec.max_position_embeddings);
        let mut places = std::mem::take(&mut layout.places).into_iter();
        layout.places = spec
            .layers
            .iter()
            .map(|layer| keeps_keys(&layer).then(|| places.next()).flatten().unwrap_or(NOWHERE))
            .collect();
        layout
    }

    /// As `of`, from each layer's window and the longest context.
    #[must_use]
    pub fn new(windows: &[Option<u32>], longest: u32) -> Self {
        // A window that holds the longest context never passes anything.
        let windows: Vec<Option<u32>> =
            windows.iter().map(|window| window.filter(|&window| window < longest)).collect();
        let mut classes = windows.clone();
        // Those that see everything first, then the longest window.
        classes.sort_by_key(|window| std::cmp::Reverse(window.unwrap_or(u32::MAX)));
        classes.dedup();
        if classes.len() > MAX_GROUPS {
            return Self::one_group(windows.len());
        }
        let typical = TYPICAL_TOKENS.min(longest);
        let layers_per_group = layers_per_group(&classes, &windows, typical);
        let mut layout = Self { windows: Vec::new(), layers_per_group, places: Vec::new() };
        layout.places.resize(windows.len(), KvPlace { group: 0, index: 0 });
        for class in classes {
            let first_group = layout.windows.len();
            let members = windows.iter().enumerate().filter(|(_, window)| **window == class);
            for (number, (layer, _)) in members.enumerate() {
                let group = first_group + number / layers_per_group;
                layout.places[layer] = KvPlace { group, index: number % layers_per_group };
                layout.windows.resize(group + 1, class);
            }
        }
        layout
    }

    /// The layout in which all layers keep everything.
    #[must_use]
    pub fn one_group(num_layers: usize) -> Self {
        let places = (0..num_layers).map(|index| KvPlace { group: 0, index }).collect();
        Self { windows: vec![None], layers_per_group: num_layers, places }
    }

    /// Number of groups.
    #[must_use]
    pub fn num_groups(&self) -> usize {
        self.windows.len()
    }
}

/// The number of layers that takes least memory.
fn layers_per_group(
    classes: &[Option<u32>],
    windows: &[Option<u32>],
    typical_tokens: u32,
) -> usize {
    let counts = classes.iter().map(|class| windows.iter().filter(|other| *other == class).count());
    let counts: Vec<usize> = counts.collect();
    let cost = |size: usize| {
        let kept = |class: &Option<u32>| class.map_or(typical_tokens, |w| w.min(typical_tokens));
        let groups = classes.iter().zip(&counts);
        let tokens = groups.map(|(class, n)| n.div_ceil(size) as u64 * u64::from(kept(class)));
        tokens.sum::<u64>() * size as u64
    };
    let num_groups = |size: usize| counts.iter().map(|n| n.div_ceil(size)).sum::<usize>();
    let sizes = (1..=windows.len()).filter(|&size| num_groups(size) <= MAX_GROUPS);
    sizes.min_by_key(|&size| (cost(size), num_groups(size))).unwrap_or(1)
}

#[cfg(test)]
mod tests;
