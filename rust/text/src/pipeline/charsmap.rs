//! [2] SentencePiece's compiled normalisation rules: a trie of texts and their replacements. Any
//! thread.
//!
//! Layout: u32 size of the trie in bytes, the trie as u32 units (a double array as in Darts), then
//! the replacements, each followed by a zero byte. The input is hostile: every access is checked.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use unicode_segmentation::UnicodeSegmentation;

/// Normalisation rules.
#[derive(Debug)]
pub(crate) struct CharsMap {
    units: Vec<u32>,
    /// All replacements, one after the other.
    replacements: String,
}

impl CharsMap {
    /// Reads the rules.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, String> {
        let (size, rest) = bytes.split_first_chunk::<4>().ok_or("shorter than its header")?;
        let size = u32::from_le_bytes(*size) as usize;
        let (trie, replacements) =
            rest.split_at_checked(size).ok_or("its trie is longer than the map")?;
        let (units, odd) = trie.as_chunks::<4>();
        if units.is_empty() || !odd.is_empty() {
            return Err(format!("a trie of {size} bytes"));
        }
        let replacements = String::from_utf8(replacements.to_vec());
        Ok(Self {
            units: units.iter().map(|unit| u32::from_le_bytes(*unit)).collect(),
            replacements: replacements.map_err(|_| "its replacements are not UTF-8")?,
        })
    }

    /// Reads the rules in tokenizer.json's form.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn from_base64(text: &str) -> Result<Self, String> {
        Self::new(&crate::base64::decode(text).ok_or("not base64")?)
    }

    /// The text as the tokenizers library normalises it: by short grapheme clusters, else by character.
    pub(crate) fn apply_to_graphemes(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for grapheme in text.graphemes(true) {
            if grapheme.len() < 6
                && let Some(replacement) = self.shortest(grapheme)
            {
                out.push_str(replacement);
                continue;
            }
            for c in grapheme.chars() {
                match self.shortest(c.encode_utf8(&mut [0; 4])) {
                    Some(replacement) => out.push_str(replacement),
                    None => out.push(c),
                }
            }
        }
        out
    }

    /// The replacement of the shortest prefix of `text` that has a rule, as in the library.
    fn shortest(&self, text: &str) -> Option<&str> {
        let mut first = None;
        self.each_prefix(text.as_bytes(), |_, value| {
            first.get_or_insert(value);
        });
        self.replacement(first?)
    }

    /// The length of the longest prefix of `text` that has a rule, and what replaces it.
    pub(crate) fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let mut last = None;
        self.each_prefix(text.as_bytes(), |len, value| last = Some((len, value)));
        let (len, value) = last?;
        Some((len, self.replacement(value)?))
    }

    fn replacement(&self, value: u32) -> Option<&str> {
        let rest = self.replacements.get(value as usize..)?;
        rest.split('\0').next()
    }

    /// Calls `found` with length and value of every prefix that has a rule.
    fn each_prefix(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let unit = |at: u32| self.units.get(at as usize).copied();
        let Some(root) = unit(0) else { return };
        let mut at = offset(root);
        for (len, &byte) in (1usize..).zip(text) {
            at ^= u32::from(byte);
            // A zero byte ends the keys of the trie.
            let Some(node) = unit(at).filter(|node| byte != 0 && label(*node) == u32::from(byte))
            else {
                return;
            };
            at ^= offset(node);
            if has_leaf(node)
                && let Some(leaf) = unit(at)
            {
                found(len, leaf & 0x7FFF_FFFF);
            }
        }
    }
}

fn has_leaf(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

fn label(unit: u32) -> u32 {
    unit & 0x8000_00FF
}

fn offset(unit: u32) -> u32 {
    (unit >> 10) << ((unit & 1 << 9) >> 6)
}
