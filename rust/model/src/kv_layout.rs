//! Which layers keep their keys and values together, and for how long. Pure, at load.
//!
//! Layers with the same window and equally wide keys form a class. A class is cut into groups of equally many layers, the same
//! number for all classes, so that a KV block of any group has the same size and all groups share one
//! pool. Where some layers have wider keys than others, a layer takes as many places of its group as its keys are
//! wide, and a group has equally many places. Where a class does not divide evenly, its last group has empty places.

use crate::{LayerSpec, ModelSpec};

/// How a model's layers are grouped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// The window of each group's layers; `None` where they see everything, which comes first.
    pub windows: Vec<Option<u32>>,
    /// Places of a group, empty ones included. A layer has one, unless layers differ in the width of their keys: then
    /// as many as `unit_width` goes into its own.
    pub layers_per_group: usize,
    /// Numbers of a token's keys in one place.
    pub unit_width: u32,
    /// Each layer's group and its place in it; of no meaning for a layer that keeps no keys.
    pub places: Vec<KvPlace>,
}

/// Where a layer's keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlace {
    /// Index into `KvLayout::windows`.
    pub group: usize,
    /// The layer's first place, below `KvLayout::layers_per_group`.
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
        let with_keys: Vec<&LayerSpec> =
            spec.layers.iter().filter(|layer| layer.keeps_keys()).collect();
        let width = |layer: &LayerSpec| spec.heads(layer).kv_width();
        let unit_width = with_keys.iter().fold(0, |unit, layer| common_divisor(unit, width(layer)));
        let units = |layer: &LayerSpec| (width(layer) / unit_width.max(1)) as usize;
        let layers = with_keys.iter().map(|layer| (layer.window, units(layer)));
        let mut layout = Self::arranged(&layers.collect::<Vec<_>>(), spec.max_position_embeddings);
        layout.unit_width = unit_width;
        let mut places = std::mem::take(&mut layout.places).into_iter();
        for layer in &spec.layers {
            let place = match layer.keys_of {
                Some(source) => layout.places.get(source as usize).copied(),
                None if layer.keeps_keys() => places.next(),
                None => None,
            };
            layout.places.push(place.unwrap_or(NOWHERE));
        }
        layout
    }

    /// As `of`, from each layer's window and the longest context, keys being equally wide.
    #[must_use]
    pub fn new(windows: &[Option<u32>], longest: u32) -> Self {
        let layers: Vec<Class> = windows.iter().map(|window| (*window, 1)).collect();
        Self::arranged(&layers, longest)
    }

    fn arranged(layers: &[Class], longest: u32) -> Self {
        // A window that holds the longest context never passes anything.
        let kept = |window: Option<u32>| window.filter(|&window| window < longest);
        let layers: Vec<Class> =
            layers.iter().map(|(window, units)| (kept(*window), *units)).collect();
        let mut classes = layers.clone();
        // Those that see everything first, then the longest window.
        classes
            .sort_by_key(|(window, units)| (std::cmp::Reverse(window.unwrap_or(u32::MAX)), *units));
        classes.dedup();
        let typical = TYPICAL_TOKENS.min(longest);
        let Some(size) = places_per_group(&classes, &layers, typical) else {
            return Self::in_one_group(&layers);
        };
        let mut layout = Self::empty(size);
        layout.places.resize(layers.len(), NOWHERE);
        for class in classes {
            let first_group = layout.windows.len();
            let (window, units) = class;
            let in_group = size / units;
            let members = layers.iter().enumerate().filter(|(_, other)| **other == class);
            for (number, (layer, _)) in members.enumerate() {
                let group = first_group + number / in_group;
                layout.places[layer] = KvPlace { group, index: number % in_group * units };
                layout.windows.resize(group + 1, window);
            }
        }
        layout
    }

    fn empty(layers_per_group: usize) -> Self {
        Self { windows: Vec::new(), layers_per_group, unit_width: 0, places: Vec::new() }
    }

    fn in_one_group(layers: &[Class]) -> Self {
        let mut layout = Self::empty(layers.iter().map(|(_, units)| units).sum());
        layout.windows.push(None);
        let mut index = 0;
        for (_, units) in layers {
            layout.places.push(KvPlace { group: 0, index });
            index += units;
        }
        layout
    }

    /// The layout in which all layers keep everything.
    #[must_use]
    pub fn one_group(num_layers: usize) -> Self {
        Self::in_one_group(&vec![(None, 1); num_layers])
    }

    /// Whether some layers take more places than others.
    #[must_use]
    pub fn layers_differ(&self, spec: &ModelSpec) -> bool {
        let mut with_keys = spec.layers.iter().filter(|layer| layer.keeps_keys());
        with_keys.any(|layer| spec.heads(layer).kv_width() != self.unit_width)
    }

    /// Number of groups.
    #[must_use]
    pub fn num_groups(&self) -> usize {
        self.windows.len()
    }
}

/// A layer's window, and the places that it takes.
type Class = (Option<u32>, usize);

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The number of places that takes least memory; `None` if there would be too many groups anyway.
fn places_per_group(classes: &[Class], layers: &[Class], typical_tokens: u32) -> Option<usize> {
    let counts = classes.iter().map(|class| layers.iter().filter(|other| *other == class).count());
    let counts: Vec<usize> = counts.collect();
    let groups = |size: usize| {
        let of_class = classes.iter().zip(&counts);
        of_class.map(move |((window, units), n)| (*window, n.div_ceil(size / units)))
    };
    let cost = |size: usize| {
        let kept = |window: Option<u32>| window.map_or(typical_tokens, |w| w.min(typical_tokens));
        let tokens = groups(size).map(|(window, n)| n as u64 * u64::from(kept(window)));
        tokens.sum::<u64>() * size as u64
    };
    let num_groups = |size: usize| groups(size).map(|(_, n)| n).sum::<usize>();
    let widest = layers.iter().map(|(_, units)| *units).max()?;
    let all = layers.iter().map(|(_, units)| units).sum();
    let sizes = (widest..=all).filter(|&size| num_groups(size) <= MAX_GROUPS);
    sizes.min_by_key(|&size| (cost(size), num_groups(size)))
}

#[cfg(test)]
mod tests;
