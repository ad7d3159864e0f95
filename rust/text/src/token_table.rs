//! The bytes and the name of every id, and whether it is special. Any thread, read-only.

use std::collections::HashMap;

use crate::TextError;

/// Bytes and flags of all ids in one allocation each, so that a look-up touches two cache lines.
#[derive(Debug, Default)]
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// `bytes[offsets[id]..offsets[id + 1]]` are the bytes of `id`.
    offsets: Vec<u32>,
    flags: Vec<Flag>,
    ids: HashMap<Box<str>, u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    /// A hole in the numbering.
    Absent,
    Ordinary,
    Special,
}

/// One entry while the table is made.
#[derive(Debug)]
pub(crate) struct TokenEntry {
    /// The token as the vocabulary spells it.
    pub(crate) name: String,
    /// The bytes that it adds to the text.
    pub(crate) bytes: Vec<u8>,
    pub(crate) special: bool,
}

impl TokenTable {
    /// Makes the table of a vocabulary in `file`; `entries[id]` is `None` where it has no such id.
    ///
    /// # Errors
    /// `TextError::Load` for a token that is too long.
    pub(crate) fn new(
        file: &'static str,
        entries: Vec<Option<TokenEntry>>,
    ) -> Result<Self, TextError> {
        let mut table = Self { offsets: vec![0], ..Self::default() };
        for (id, entry) in (0u32..).zip(entries) {
            let flag = match entry {
                None => Flag::Absent,
                Some(entry) => {
                    let size = entry.bytes.len();
                    if size > MAX_TOKEN_BYTES {
                        let message = format!(
                            "token {id} has {size} bytes; at most {MAX_TOKEN_BYTES} are allowed"
                        );
                        return Err(TextError::load(file, message));
                    }
                    table.bytes.extend_from_slice(&entry.bytes);
                    // Of two tokens with one name the first counts: special ones come first.
                    table.ids.entry(entry.name.into_boxed_str()).or_insert(id);
                    if entry.special { Flag::Special } else { Flag::Ordinary }
                }
            };
            table.flags.push(flag);
            table.offsets.push(u32::try_from(table.bytes.len()).unwrap_or(u32::MAX));
        }
        Ok(table)
    }

    /// Highest id + 1.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.flags.len()).unwrap_or(u32::MAX)
    }

    /// The bytes of `id`; `None` for an id that the vocabulary lacks.
    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let index = id as usize;
        if *self.flags.get(index)? == Flag::Absent {
            return None;
        }
        self.bytes.get(*self.offsets.get(index)? as usize..*self.offsets.get(index + 1)? as usize)
    }

    /// Whether `id` is a special token.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.flags.get(id as usize) == Some(&Flag::Special)
    }

    /// The id of a token by its spelling in the vocabulary.
    pub(crate) fn id(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }
}

/// A text is at most so many times as long as its list of ids, in a prompt, an answer or /detokenize. The
/// longest tokens of published vocabularies are some hundred bytes, of spaces for example.
const MAX_TOKEN_BYTES: usize = 1024;
/// Ids above this are refused: a table of this size is the largest that a broken file can ask for.
pub(crate) const MAX_VOCAB: u32 = 4 << 20;
