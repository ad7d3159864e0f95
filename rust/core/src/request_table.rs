//! All requests that have not ended, or whose blocks a submitted step still names. Engine thread only.

use std::ops::{Index, IndexMut};

use rustc_hash::FxHashMap;

use crate::RequestId;
use crate::ids::RequestIndex;
use crate::live_request::LiveRequest;

/// Requests by place and by id.
#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    /// Not boxed: a step goes through all of them, and few memory pages are faster than many.
    places: Vec<Option<LiveRequest>>,
    free: Vec<RequestIndex>,
    /// Requests that have not ended; an ended one may still be leaving.
    /// The engine counts the ids up: no client can choose ones that collide.
    by_id: FxHashMap<RequestId, RequestIndex>,
}

impl RequestTable {
    /// Panics if a request with this id has not ended.
    pub(crate) fn insert(&mut self, request: LiveRequest) -> RequestIndex {
        let id = request.id();
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            RequestIndex(u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX))
        });
        self.places[index.0 as usize] = Some(request);
        let old = self.by_id.insert(id, index);
        assert!(old.is_none(), "request {id} was admitted twice");
        index
    }

    /// The request with exactly this id, if it has not ended.
    pub(crate) fn find(&self, id: RequestId) -> Option<RequestIndex> {
        self.by_id.get(&id).copied()
    }

    /// Its id is not found any more.
    pub(crate) fn end(&mut self, index: RequestIndex) {
        let removed = self.by_id.remove(&self[index].id());
        assert_eq!(removed, Some(index), "a request ended twice");
    }

    /// Nothing names it any more.
    pub(crate) fn remove(&mut self, index: RequestIndex) {
        self.places[index.0 as usize] = None;
        self.free.push(index);
    }

    /// Requests that have not ended.
    pub(crate) fn num_alive(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn alive(&self) -> impl Iterator<Item = RequestIndex> {
        self.by_id.values().copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestIndex, &LiveRequest)> {
        let places = (0_u32..).map(RequestIndex).zip(&self.places);
        places.filter_map(|(index, place)| place.as_ref().map(|request| (index, request)))
    }
}

impl Index<RequestIndex> for RequestTable {
    type Output = LiveRequest;

    fn index(&self, index: RequestIndex) -> &LiveRequest {
        match &self.places[index.0 as usize] {
            Some(request) => request,
            None => unreachable!("place {} of the request table is empty", index.0),
        }
    }
}

impl IndexMut<RequestIndex> for RequestTable {
    fn index_mut(&mut self, index: RequestIndex) -> &mut LiveRequest {
        match &mut self.places[index.0 as usize] {
            Some(request) => request,
            None => unreachable!("place {} of the request table is empty", index.0),
        }
    }
}
