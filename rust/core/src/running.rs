//! [4] The requests that hold a slot. Engine thread only.

use crate::counts::count;
use crate::ids::RequestIndex;
use crate::ticket::Rank;

/// Running requests by rank, and those that hold a slot only until the steps in flight that name them
/// have completed.
#[derive(Debug, Default)]
pub(crate) struct RunningSet {
    /// Best first.
    running: Vec<(Rank, RequestIndex)>,
    preempted: Vec<RequestIndex>,
    /// Ended.
    num_leaving: u32,
}

impl RunningSet {
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// The running request at `place`, best rank first.
    pub(crate) fn at(&self, place: usize) -> RequestIndex {
        self.running[place].1
    }

    /// Running requests, best rank first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = RequestIndex> {
        self.running.iter().map(|&(_, index)| index)
    }

    /// The place of the first running request with a worse rank; whether one has this rank itself does
    /// not matter.
    pub(crate) fn place_after(&self, rank: Rank) -> usize {
        self.running.partition_point(|&(other, _)| other <= rank)
    }

    pub(crate) fn insert(&mut self, rank: Rank, index: RequestIndex) {
        self.running.insert(self.place_after(rank), (rank, index));
    }

    pub(crate) fn remove(&mut self, rank: Rank) {
        match self.running.binary_search_by_key(&rank, |&(rank, _)| rank) {
            Ok(place) => self.running.remove(place),
            Err(_) => unreachable!("a running request is not on the list"),
        };
    }

    /// Preempted requests that steps in flight still name.
    pub(crate) fn preempted(&self) -> impl Iterator<Item = RequestIndex> {
        self.preempted.iter().copied()
    }

    pub(crate) fn add_preempted(&mut self, index: RequestIndex) {
        self.preempted.push(index);
    }

    pub(crate) fn remove_preempted(&mut self, index: RequestIndex) {
        self.preempted.retain(|&other| other != index);
    }

    pub(crate) fn num_leaving(&self) -> u32 {
        self.num_leaving
    }

    pub(crate) fn add_leaving(&mut self) {
        self.num_leaving += 1;
    }

    pub(crate) fn remove_leaving(&mut self) {
        self.num_leaving -= 1;
    }

    /// Requests with a slot that have not ended.
    pub(crate) fn num_alive(&self) -> u32 {
        count(self.running.len() + self.preempted.len())
    }

    /// Requests with a slot.
    pub(crate) fn num_holding(&self) -> u32 {
        self.num_alive() + self.num_leaving
    }

    /// Panics if the order is broken; `rank_of` is each request's own view.
    pub(crate) fn verify(&self, rank_of: impl Fn(RequestIndex) -> Rank) {
        assert!(
            self.running.is_sorted_by_key(|&(rank, _)| rank),
            "running requests are out of order"
        );
        for &(rank, index) in &self.running {
            assert_eq!(rank_of(index), rank, "rank of running request {}", index.0);
        }
    }
}
