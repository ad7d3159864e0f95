//! Groups of layers that keep the same part of a sequence. Plain data, any thread.
//!
//! The core knows of a group only how far back its layers see. Each group has a block table of its own;
//! all take their blocks from one pool, because a block of any group has the same size.

use crate::BlockId;

/// Most groups of a model: each costs a table and its place in every list of new blocks.
pub const MAX_KV_GROUPS: usize = 8;

/// What each group's layers see. The first group is the one that prefixes are known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroups {
    len: usize,
    /// A row at position p reads nothing below `p + 1 - window`; `u32::MAX` reads everything.
    windows: [u32; MAX_KV_GROUPS],
    /// Windows do not move: a row reads nothing below the last multiple of `window` up to its position.
    are_chunks: bool,
}

impl KvGroups {
    /// One group whose layers see everything.
    pub const ONE: Self = Self { len: 1, windows: [u32::MAX; MAX_KV_GROUPS], are_chunks: false };

    /// A window each, or `None` where layers see everything.
    ///
    /// # Panics
    /// If there is no group or more than `MAX_KV_GROUPS`, or a window is below 2: a group always holds a
    /// token that has been computed.
    #[must_use]
    pub fn new(windows: &[Option<u32>]) -> Self {
        assert!((1..=MAX_KV_GROUPS).contains(&windows.len()), "{} KV groups", windows.len());
        let mut groups = Self { len: windows.len(), ..Self::ONE };
        for (to, window) in groups.windows.iter_mut().zip(windows) {
            *to = window.unwrap_or(u32::MAX);
            assert!(*to >= 2, "a KV group with a window of {to}");
        }
        groups
    }

    /// The same groups with chunks in place of windows: a sequence is cut into chunks of a window's length, and a row
    /// sees its own chunk up to itself.
    #[must_use]
    pub fn in_chunks(self) -> Self {
        Self { are_chunks: true, ..self }
    }

    /// Number of groups.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is one group and it keeps everything.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.len == 1 && self.is_full(0)
    }

    /// Whether the group's layers see everything.
    #[must_use]
    pub fn is_full(&self, group: usize) -> bool {
        self.windows[group] == u32::MAX
    }

    /// The first place in the group's block table that a row at `position`, or a later one, reads.
    #[must_use]
    pub fn first_read(&self, group: usize, position: u32, block_size: u32) -> u32 {
        let window = self.windows[group];
        let first = match self.are_chunks {
            // A chunk's first row reads nothing; its group holds the token before it.
            true => (position - position % window).min(position.saturating_sub(1)),
            false => (position + 1).saturating_sub(window),
        };
        first / block_size
    }

    /// Most blocks that a sequence of so many blocks' worth of tokens must hold at once, all groups
    /// together, if its rows have one token each and `num_ahead` of them are submitted at a time.
    #[must_use]
    pub fn num_blocks(&self, num_places: u32, block_size: u32, num_ahead: u32) -> u32 {
        let most = |group| self.most_places(group, block_size, num_ahead).min(num_places);
        (0..self.len).map(most).fold(0, u32::saturating_add)
    }

    /// The longest sequence that so many blocks hold, in the sense of `num_blocks`.
    #[must_use]
    pub fn most_tokens(&self, num_blocks: u32, block_size: u32, num_ahead: u32) -> u32 {
        let fits = |places| self.num_blocks(places, block_size, num_ahead) <= num_blocks;
        // The number of blocks grows with the length: bisect.
        let (mut low, mut high) = (0, u32::MAX / block_size);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low * block_size
    }

    /// The parts of a plan's list of blocks, which has the same number for each group; nothing if it has
    /// not.
    #[must_use]
    pub fn split<'a>(
        &self,
        blocks: &'a [BlockId],
    ) -> Option<impl Iterator<Item = &'a [BlockId]> + use<'a>> {
        let (num_groups, num_places) = (self.len, blocks.len() / self.len);
        (blocks.len() == num_groups * num_places)
            .then(|| (0..num_groups).map(move |group| &blocks[group * num_places..][..num_places]))
    }

    /// As `num_blocks`, of one group, however long the sequence.
    pub(crate) fn most_places(&self, group: usize, block_size: u32, num_ahead: u32) -> u32 {
        if self.is_full(group) {
            return u32::MAX;
        }
        // So many positions in a row touch the most blocks if the first is the last of its block.
        let num_read = self.windows[group].saturating_add(num_ahead.max(1) - 1);
        (num_read - 1).div_ceil(block_size) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_place_is_read_until_its_chunk_has_ended() {
        for (chunk, block_size) in [(2, 1), (2, 4), (5, 4), (8, 4), (128, 64), (130, 16)] {
            let groups = KvGroups::new(&[None, Some(chunk)]).in_chunks();
            assert!(groups.is_full(0) && !groups.is_full(1));
            let most = groups.most_places(1, block_size, 1);
            for position in 0..3 * chunk + 2 {
                assert_eq!(groups.first_read(0, position, block_size), 0);
                let first = groups.first_read(1, position, block_size);
                let read = position / chunk * chunk;
                let held = if position > 0 { read.min(position - 1) } else { 0 };
                assert_eq!(first, held / block_size, "{chunk} {position}");
                assert!(position / block_size - first < most, "{chunk} {position}");
            }
        }
    }

    #[test]
    fn test_a_place_is_read_until_the_window_has_passed_its_last_position() {
        for (window, block_size) in [(2, 1), (2, 4), (5, 4), (8, 4), (128, 64), (130, 16)] {
            let groups = KvGroups::new(&[None, Some(window)]);
            for position in 0..1000 {
                assert_eq!(groups.first_read(0, position, block_size), 0);
                let first = groups.first_read(1, position, block_size);
                let sees = |seen: u32| seen + window > position;
                assert!(first == 0 || !sees(first * block_size - 1), "{window} {position}");
                assert!(sees(first * block_size + block_size - 1), "{window} {position}");
            }
        }
    }

    #[test]
    fn test_most_places_is_what_rows_of_one_token_need() {
        for (window, block_size) in [(2, 1), (2, 4), (5, 4), (8, 4), (128, 64), (130, 16)] {
            let groups = KvGroups::new(&[Some(window)]);
            for num_ahead in 1..4 {
                let held = |committed| {
                    let first = groups.first_read(0, committed, block_size);
                    (committed + num_ahead).div_ceil(block_size) - first
                };
                let most = (0..1000).map(held).max().unwrap();
                assert_eq!(groups.most_places(0, block_size, num_ahead), most, "{window}");
                assert_eq!(groups.num_blocks(1, block_size, num_ahead), 1);
                assert_eq!(groups.num_blocks(1000, block_size, num_ahead), most);
            }
        }
        assert_eq!(KvGroups::ONE.num_blocks(1000, 16, 2), 1000);
    }

    #[test]
    fn test_most_tokens_is_the_last_length_that_fits() {
        assert_eq!(KvGroups::ONE.most_tokens(10, 16, 2), 160);
        let groups = KvGroups::new(&[None, Some(17)]);
        // 17 positions and one submitted ahead lie in at most 3 blocks of 16.
        assert_eq!(groups.most_tokens(10, 16, 2), 7 * 16);
        assert_eq!(groups.most_tokens(5, 16, 2), 2 * 16);
        assert_eq!(groups.most_tokens(1, 16, 2), 0);
        assert!(KvGroups::new(&[Some(17)]).most_tokens(3, 16, 2) > 1 << 31);
    }

    #[test]
    fn test_a_list_of_blocks_is_split_evenly_or_not_at_all() {
        let blocks: Vec<BlockId> = (0..6).map(BlockId).collect();
        let groups = KvGroups::new(&[None, Some(8), Some(4)]);
        let parts: Vec<&[BlockId]> = groups.split(&blocks).unwrap().collect();
        assert_eq!(parts, [&blocks[..2], &blocks[2..4], &blocks[4..]]);
        assert!(groups.split(&blocks[..5]).is_none());
        assert_eq!(groups.split(&[]).unwrap().count(), 3);
    }
}
