//! A full block as its place in a chain of blocks. Plain data.

use super::chain_hash::Parent;
use crate::TokenId;

/// One of a chain's full blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link<'a> {
    /// Which layers' keys and values.
    pub(crate) group: usize,
    /// Chain hash, the same for all groups.
    pub(crate) hash: u128,
    /// In the first group what comes before the block; in others the first group's block at the same
    /// place.
    pub(crate) parent: Parent,
    pub(crate) tokens: &'a [TokenId],
}
