//! Layouts of published models, from their configs, and what holds for any list of windows.

use proptest::prelude::*;

use super::{KvLayout, MAX_GROUPS};

/// Every `every`-th layer sees everything, the others a window.
fn pattern(layers: usize, every: usize, window: u32) -> Vec<Option<u32>> {
    (1..=layers).map(|number| (!number.is_multiple_of(every)).then_some(window)).collect()
}

fn shape(windows: &[Option<u32>], longest: u32) -> (Vec<Option<u32>>, usize) {
    let layout = KvLayout::new(windows, longest);
    (layout.windows, layout.layers_per_group)
}

#[test]
fn test_layers_that_are_alike_are_one_group() {
    assert_eq!(shape(&[None; 32], 131_072), (vec![None], 32));
    assert_eq!(KvLayout::new(&[None; 32], 131_072), KvLayout::one_group(32));
    // Mistral 7B v0.1, and the same where no sequence is longer than the window.
    assert_eq!(shape(&[Some(4096); 32], 32_768), (vec![Some(4096)], 32));
    assert_eq!(shape(&[Some(4096); 32], 4096), (vec![None], 32));
}

#[test]
fn test_layouts_of_published_models() {
    // gpt-oss-20b and 120b.
    assert_eq!(shape(&pattern(24, 2, 128), 131_072), (vec![None, Some(128)], 12));
    assert_eq!(shape(&pattern(36, 2, 128), 131_072), (vec![None, Some(128)], 18));
    // Gemma 3 1B, 4B, 12B and 27B.
    let windows = |num_full, num_windows, window| {
        [vec![None; num_full], vec![Some(window); num_windows]].concat()
    };
    assert_eq!(shape(&pattern(26, 6, 512), 32_768), (windows(1, 6, 512), 4));
    assert_eq!(shape(&pattern(34, 6, 1024), 131_072), (windows(1, 6, 1024), 5));
    assert_eq!(shape(&pattern(48, 6, 1024), 131_072), (windows(1, 5, 1024), 8));
    assert_eq!(shape(&pattern(62, 6, 1024), 131_072), (windows(1, 6, 1024), 10));
    // OLMo 3 7B.
    assert_eq!(shape(&pattern(32, 4, 4096), 65_536), (windows(1, 3, 4096), 8));
}

#[test]
fn test_wider_keys_take_more_places() {
    // Of Gemma 4 31B 50 layers have keys twice as wide as the other 10, and a window.
    let layers: Vec<_> =
        pattern(60, 6, 1024).into_iter().map(|w| (w, 1 + usize::from(w.is_some()))).collect();
    let layout = KvLayout::arranged(&layers, 262_144);
    let windows = [vec![None], vec![Some(1024); 7]].concat();
    assert_eq!((layout.windows.clone(), layout.layers_per_group), (windows, 16));
    let mut taken = std::collections::HashSet::new();
    for (place, (_, units)) in layout.places.iter().zip(&layers) {
        for index in place.index..place.index + units {
            assert!(index < layout.layers_per_group && taken.insert((place.group, index)));
        }
    }
}

#[test]
fn test_layers_keep_their_order_in_a_group() {
    let layout = KvLayout::new(&pattern(6, 3, 8), 2048);
    assert_eq!((layout.num_groups(), layout.layers_per_group), (3, 2));
    let places: Vec<_> = layout.places.iter().map(|place| (place.group, place.index)).collect();
    assert_eq!(places, [(1, 0), (1, 1), (0, 0), (2, 0), (2, 1), (0, 1)]);
}

#[test]
fn test_more_windows_than_groups_are_not_distinguished() {
    let windows: Vec<Option<u32>> = (1..=9).map(|window| Some(8 * window)).collect();
    assert_eq!(KvLayout::new(&windows, 2048), KvLayout::one_group(9));
}

proptest! {
    #[test]
    fn test_each_layer_has_a_place_of_its_own_in_a_group_of_its_window(
        windows in prop::collection::vec(prop::option::of(prop::sample::select(vec![16, 64, 4096])), 1..80),
        longest in prop::sample::select(vec![32, 2048, 100_000]),
    ) {
        let layout = KvLayout::new(&windows, longest);
        prop_assert!(layout.num_groups() <= MAX_GROUPS);
        prop_assert!(layout.windows.is_sorted_by_key(|window| std::cmp::Reverse(window.unwrap_or(u32::MAX))));
        let mut seen = std::collections::HashSet::new();
        for (place, window) in layout.places.iter().zip(&windows) {
            prop_assert!(seen.insert((place.group, place.index)), "{place:?} twice");
            prop_assert!(place.index < layout.layers_per_group);
            prop_assert_eq!(layout.windows[place.group], window.filter(|&window| window < longest));
        }
        let used: std::collections::HashSet<_> = layout.places.iter().map(|place| place.group).collect();
        prop_assert_eq!(used.len(), layout.num_groups(), "no group is empty");
    }
}
