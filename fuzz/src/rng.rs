//! A small generator of random numbers (splitmix64, Steele et al. 2014): the same on every machine.

/// The state.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator of its own for each seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `end` - 1; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.bits() % end as u64) as usize }
    }

    /// One of `items`, which has at least one.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A number that code gets wrong: near a power of two, tiny, or anything.
    pub fn edge(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(5) as u64,
            1 | 2 => (1_u64 << self.below(64)).wrapping_add(self.below(3) as u64).wrapping_sub(1),
            _ => u64::MAX.wrapping_sub(self.below(9) as u64) >> self.below(40),
        }
    }
}
