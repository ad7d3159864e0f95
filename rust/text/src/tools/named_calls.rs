//! [7] The calls of one answer whose names stand before their arguments: the one that is being read, and how many
//! have begun. Engine thread. Finding the calls is their readers' part (`block_calls.rs`, `harmony.rs`).

use super::call::{CallReader, CallStep};
use super::ids::CallIds;
use crate::answer_piece::Pieces;

/// The state of one choice.
#[derive(Clone, Debug)]
pub(crate) struct NamedCalls {
    ids: CallIds,
    /// Of the call that is read.
    pub(crate) name: String,
    /// What has been taken of it until it has begun: content, if it turns out to be none.
    pub(crate) raw: String,
    reader: CallReader,
    num_begun: u32,
    single: bool,
    complete: bool,
}

impl NamedCalls {
    /// `single`: the answer ends with the first call.
    pub(crate) fn new(ids: CallIds, single: bool) -> Self {
        Self {
            ids,
            name: String::new(),
            raw: String::new(),
            reader: CallReader::bare(String::new()),
            num_begun: 0,
            single,
            complete: false,
        }
    }

    /// How many have begun.
    pub(crate) fn len(&self) -> u32 {
        self.num_begun
    }

    /// Whether the one allowed call has been read.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// An object of arguments comes next, for the call of this name.
    pub(crate) fn expect_object(&mut self) {
        self.reader = CallReader::bare(self.name.clone());
    }

    /// The next character of that object.
    pub(crate) fn step(&mut self, c: char, out: &mut Pieces) -> CallStep {
        self.reader.step(c, self.index(), out)
    }

    /// Emits the call's name and id: what is being read is a call.
    pub(crate) fn announce(&mut self, out: &mut Pieces) {
        out.call(self.num_begun, self.ids.next(), self.name.clone());
        self.reader.show_waiting(self.num_begun, out);
        self.num_begun += 1;
        self.raw.clear();
    }

    /// Whether the call that is read has been announced.
    pub(crate) fn is_announced(&self) -> bool {
        self.raw.is_empty()
    }

    /// The index of the call that is being read, announced or not yet.
    pub(crate) fn index(&self) -> u32 {
        if self.is_announced() { self.num_begun.saturating_sub(1) } else { self.num_begun }
    }

    /// The object of arguments has ended, whole or cut.
    pub(crate) fn end_object(&mut self, out: &mut Pieces) {
        self.reader.end(self.index(), out);
    }

    /// The call has ended.
    pub(crate) fn end(&mut self) {
        self.complete = self.single;
    }
}
