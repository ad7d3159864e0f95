//! Turns inputs of a corpus into new ones.

use serde_json::Value;

use crate::json_edits::{grafted, replaced, without_key};
use crate::rng::Rng;

/// Changes `input` in one to four places. `words` are texts of the format, `other` is another input of the
/// corpus. The result has at most `max_len` bytes.
pub fn mutate(
    input: &[u8],
    other: &[u8],
    words: &[&str],
    max_len: usize,
    rng: &mut Rng,
) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=rng.below(4) {
        change(&mut bytes, other, words, max_len, rng);
    }
    bytes.truncate(max_len);
    bytes
}

/// As `mutate`, for JSON: the result is JSON again. `None` if `input` is not.
pub fn mutate_json(input: &[u8], other: &[u8], max_len: usize, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut tree: Value = serde_json::from_slice(input).ok()?;
    for _ in 0..=rng.below(3) {
        tree = match (rng.below(3), serde_json::from_slice(other)) {
            (0, _) => replaced(tree, rng),
            (1, _) => without_key(tree, rng),
            (_, Ok(other)) => grafted(tree, other, rng),
            (_, Err(_)) => tree,
        };
    }
    let text = tree.to_string();
    (text.len() <= max_len).then(|| text.into_bytes())
}

fn change(bytes: &mut Vec<u8>, other: &[u8], words: &[&str], max_len: usize, rng: &mut Rng) {
    let place = rng.below(bytes.len() + 1);
    let end = (place + 1 + rng.below(32)).min(bytes.len());
    let start = place.min(end);
    match rng.below(10) {
        0 if place < bytes.len() => bytes[place] ^= 1 << rng.below(8),
        1 if place < bytes.len() => bytes[place] = *rng.pick(b"\0\x01\x7f\x80\xff \n\"\\{}[]()0-"),
        2 => drop(bytes.drain(start..end)),
        3 if !words.is_empty() => {
            let word = *rng.pick(words);
            bytes.splice(place..place, word.bytes());
        }
        4 => {
            // One part, many times: what is quadratic shows.
            let part = bytes[start..end].to_vec();
            let room = max_len.saturating_sub(bytes.len()) / part.len().max(1);
            let most = room.min(1 << rng.below(12));
            let again = part.repeat(rng.below(most + 1));
            bytes.splice(place..place, again);
        }
        5 => replace_number(bytes, place, rng),
        6 => {
            let from = rng.below(other.len() + 1);
            let to = (from + rng.below(200)).min(other.len());
            bytes.splice(start..end, other[from..to].iter().copied());
        }
        7 => {
            let random: Vec<u8> = (0..1 + rng.below(6)).map(|_| rng.bits() as u8).collect();
            bytes.splice(place..place, random);
        }
        8 if bytes.len() >= place + 8 => {
            let number = rng.edge().to_le_bytes();
            let width = 1 << rng.below(4);
            bytes[place..place + width].copy_from_slice(&number[..width]);
        }
        9 => bytes.truncate(place),
        _ => bytes.insert(place, rng.bits() as u8),
    }
}

/// The next run of digits becomes another number.
fn replace_number(bytes: &mut Vec<u8>, place: usize, rng: &mut Rng) {
    let Some(skipped) = bytes[place..].iter().position(u8::is_ascii_digit) else { return };
    let start = place + skipped;
    let len = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    bytes.splice(start..start + len, rng.edge().to_string().into_bytes());
}
