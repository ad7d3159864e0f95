//! Reads a GGUF header sequentially with pread, through one window. Every length is compared with
//! the file's size and a limit before it is used.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::error::ModelError;
use crate::source::ReadAt;

/// Longest header: the tokenizer of a 262,144-word vocabulary has about 12 MB.
const MAX_HEADER_BYTES: u64 = 128 << 20;
/// Longest string, chat templates included.
pub(super) const MAX_STRING_BYTES: u64 = 1 << 20;
const WINDOW_BYTES: u64 = 64 << 10;

pub(super) struct Cursor<'a> {
    source: &'a dyn ReadAt,
    name: &'a str,
    file_len: u64,
    position: u64,
    window: Vec<u8>,
    window_start: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: &'a dyn ReadAt, name: &'a str, file_len: u64) -> Self {
        Self { source, name, file_len, position: 0, window: Vec::new(), window_start: 0 }
    }

    pub(super) fn name(&self) -> &'a str {
        self.name
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next `len` bytes; `what` is for messages.
    pub(super) fn bytes(&mut self, len: u64, what: &str) -> Result<&[u8], ModelError> {
        let start = self.position;
        let end = start.saturating_add(len);
        if end > self.file_len {
            let size = self.file_len;
            let reason = format!("truncated: {what} needs bytes up to {end}, the file has {size}");
            return Err(ModelError::malformed(self.name, reason));
        }
        if end > MAX_HEADER_BYTES {
            return Err(ModelError::limit(self.name, "GGUF header size", end, MAX_HEADER_BYTES));
        }
        if self.window_range(start, end).is_none() {
            self.refill(start, len)?;
        }
        self.position = end;
        self.window_range(start, end)
            .and_then(|range| self.window.get(range))
            .ok_or_else(|| ModelError::malformed(self.name, "window lost its place"))
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], ModelError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(u64::try_from(N).unwrap_or(u64::MAX), what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string of at most `limit` bytes.
    pub(super) fn string(&mut self, limit: u64, what: &str) -> Result<String, ModelError> {
        let len = self.u64(what)?;
        if len > limit {
            return Err(ModelError::limit(self.name, format!("length of {what}"), len, limit));
        }
        let name = self.name;
        let bytes = self.bytes(len, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(ModelError::malformed(name, format!("{what} is not UTF-8"))),
        }
    }

    fn window_range(&self, start: u64, end: u64) -> Option<std::ops::Range<usize>> {
        let from = usize::try_from(start.checked_sub(self.window_start)?).ok()?;
        let to = usize::try_from(end.checked_sub(self.window_start)?).ok()?;
        (to <= self.window.len()).then_some(from..to)
    }

    fn refill(&mut self, start: u64, len: u64) -> Result<(), ModelError> {
        let available = self.file_len.saturating_sub(start);
        let size = len.max(WINDOW_BYTES).min(available);
        self.window.resize(usize::try_from(size).unwrap_or(0), 0);
        self.window_start = start;
        self.source
            .read_exact_at(start, &mut self.window)
            .map_err(|cause| ModelError::io(self.name, "read", cause))
    }
}
