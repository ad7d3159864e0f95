//! [3] What a caller hands to the engine thread, and the core's ids of its choices. Plain data.

use ingle_core::{NewRequest, RequestId};

use crate::stream::Stream;

/// A client request ready for the engine thread.
pub(crate) struct Submission {
    pub(crate) stream: Stream,
    /// One per choice, in order of index.
    pub(crate) requests: Vec<NewRequest>,
}

impl Submission {
    /// Gives the request another key.
    pub(crate) fn rename(&mut self, key: u64) {
        self.stream.key = key;
        for request in &mut self.requests {
            request.id = request_id(key, split_id(request.id).1);
            request.leader = request.leader.map(|leader| request_id(key, split_id(leader).1));
        }
    }
}

/// The core's id of a choice: unique, since keys are.
pub(crate) fn request_id(key: u64, choice: usize) -> RequestId {
    RequestId((key << CHOICE_BITS) | choice as u64)
}

/// The key and the choice that an id stands for.
pub(crate) fn split_id(id: RequestId) -> (u64, usize) {
    (id.0 >> CHOICE_BITS, (id.0 & (MAX_CHOICES as u64 - 1)) as usize)
}

const CHOICE_BITS: u32 = 12;
/// Choices of one client request.
pub(crate) const MAX_CHOICES: usize = 1 << CHOICE_BITS;
