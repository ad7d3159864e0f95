//! Caches the ids of words. The size is fixed, so that hostile text cannot make it grow: a new word
//! replaces an old one. Looking up a word in its first place touches one cache line.

use std::sync::{Mutex, PoisonError};

/// Ids of short words. One at a time uses it; `CachePool` hands it out.
pub(crate) struct WordCache {
    slots: Vec<Slot>,
}

/// One word: 64 bytes.
#[derive(Clone, Copy)]
struct Slot {
    /// The word, filled up with zeros, and its length in the last byte. Length 0: empty.
    key: Key,
    ids: [u32; MAX_IDS],
    len: u8,
}

/// A word in the form in which the cache compares it.
type Key = [u8; 32];

impl WordCache {
    pub(crate) fn new() -> Self {
        Self { slots: vec![Slot { key: [0; 32], ids: [0; MAX_IDS], len: 0 }; SLOTS] }
    }

    /// Appends the ids of `word`, computed only if they are not remembered.
    #[inline]
    pub(crate) fn ids(
        &mut self,
        word: &str,
        out: &mut Vec<u32>,
        compute: impl FnOnce() -> Vec<u32>,
    ) {
        let Some(key) = Self::key(word) else {
            out.append(&mut compute());
            return;
        };
        if let Some(ids) = self.get(&key) {
            out.extend_from_slice(ids);
            return;
        }
        let mut ids = compute();
        self.insert(&key, &ids);
        out.append(&mut ids);
    }

    /// The key of a word; `None` if it is too long to be remembered.
    #[inline]
    fn key(word: &str) -> Option<Key> {
        let len = word.len();
        if len > MAX_WORD {
            return None;
        }
        let mut key = [0; 32];
        key[..len].copy_from_slice(word.as_bytes());
        key[31] = len as u8;
        Some(key)
    }

    /// The ids of the word, if they are remembered.
    #[inline]
    fn get(&self, key: &Key) -> Option<&[u32]> {
        let place = place(key);
        let slot = [place, place ^ 1].map(|place| &self.slots[place]).into_iter();
        slot.into_iter()
            .find(|slot| slot.key == *key)
            .map(|slot| &slot.ids[..usize::from(slot.len)])
    }

    /// Remembers the ids of a word; long lists are not worth a slot.
    fn insert(&mut self, key: &Key, ids: &[u32]) {
        let Ok(len) = u8::try_from(ids.len()) else { return };
        if ids.len() > MAX_IDS {
            return;
        }
        let place = place(key);
        // The word that was there moves to the second place.
        self.slots[place ^ 1] = self.slots[place];
        let slot = &mut self.slots[place];
        slot.key = *key;
        slot.ids[..ids.len()].copy_from_slice(ids);
        slot.len = len;
    }
}

/// Caches that nobody is using. Several threads may encode at once; each takes one for the length of
/// a text, and the one used last is taken first, since it is warm.
#[derive(Default)]
pub(crate) struct CachePool {
    idle: Mutex<Vec<WordCache>>,
}

impl CachePool {
    pub(crate) fn take(&self) -> WordCache {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(WordCache::new)
    }

    pub(crate) fn give_back(&self, cache: WordCache) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_CACHES {
            idle.push(cache);
        }
    }
}

/// The first place of a word: its four 64-bit parts, multiplied and folded.
#[inline]
fn place(key: &Key) -> usize {
    let mut hash = 0u64;
    for part in key.chunks_exact(8) {
        let part = part.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        hash = (hash.rotate_left(23) ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    (hash >> (64 - SLOTS.trailing_zeros())) as usize
}

/// Longest word that is remembered, in bytes.
const MAX_WORD: usize = 31;
/// Longest list of ids that is remembered.
const MAX_IDS: usize = 7;
/// 2 MiB of slots; a text of 100,000 words has some 10,000 different ones.
const SLOTS: usize = 1 << 15;

/// Caches that are kept, 2 MiB each.
const MAX_IDLE_CACHES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_words_are_distinguished_and_come_back() {
        let mut cache = WordCache::new();
        let words: Vec<String> = (0..20_000).map(|n| format!(" w{n}")).collect();
        for (index, word) in (0u32..).zip(&words) {
            cache.insert(&WordCache::key(word).unwrap(), &[index, 7]);
        }
        let mut hits = 0;
        for (index, word) in (0u32..).zip(&words) {
            if let Some(ids) = cache.get(&WordCache::key(word).unwrap()) {
                assert_eq!(ids, [index, 7]);
                hits += 1;
            }
        }
        assert!(hits > 10_000, "{hits} of 20000 words remembered");
        for word in ["a", "a\0", "\0a", "\0"] {
            assert_eq!(cache.get(&WordCache::key(word).unwrap()), None);
            cache.insert(&WordCache::key(word).unwrap(), &[1]);
        }
        assert_eq!(WordCache::key(&"x".repeat(32)), None);
        assert_eq!(std::mem::size_of::<Slot>(), 64);
    }
}
