//! Markers in text that has come so far.

/// Whether the text begins with a marker that is not empty.
pub(crate) fn is_at(text: &str, marker: &str) -> bool {
    !marker.is_empty() && text.starts_with(marker)
}

/// The first of the markers in the text, and where it is.
pub(crate) fn earliest<'m>(text: &str, markers: &[&'m str]) -> Option<(usize, &'m str)> {
    let found = markers.iter().filter_map(|marker| Some((text.find(marker)?, *marker)));
    found.min_by_key(|(at, _)| *at)
}

/// The bytes at the end of the text that begin one of the markers.
pub(crate) fn begun_marker(text: &str, markers: &[&str]) -> usize {
    let begun = |marker: &&str| {
        let ends = marker.char_indices().map(|(at, _)| at).rev();
        ends.into_iter().find(|&len| text.ends_with(&marker[..len])).unwrap_or(0)
    };
    markers.iter().map(begun).max().unwrap_or(0)
}

/// The nearest character boundary at or before a byte.
pub(crate) fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// So many bytes make `<tool` and `<|cha`; fewer may be text.
pub(crate) const DISTINCT: usize = 5;
