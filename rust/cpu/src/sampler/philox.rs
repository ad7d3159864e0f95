//! Stateless random bits: Philox4x32-10 (Salmon et al. 2011), and the Gumbel-max choice made with
//! it.
//!
//! The key is the seed's low and high word. The counter is `(id / 4, output position, choice index,
//! 0)`; word `id % 4` of the result belongs to token `id`. A token's noise therefore depends only
//! on seed, choice, position and id: not on the batch, not on preemption, not on which other ids
//! are considered.

use ingle_core::TokenId;

use super::filter::Candidate;
use crate::elementwise::{exp_and_sum, maximum};
use crate::vector_path::{Arithmetic, VectorPath, per_path};

/// Everything but the token id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowKey {
    key: [u32; 2],
    position: u32,
    choice: u32,
}

impl RowKey {
    pub(crate) fn new(seed: u64, choice: u32, position: u32) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], position, choice }
    }

    /// Noise of one id.
    fn gumbel(&self, id: u32) -> f32 {
        let words = philox([id / 4, self.position, self.choice, 0], self.key);
        gumbel(words[id as usize % 4])
    }
}

/// A number in (0, 1) from 23 of the bits: exact in f32, and so is its distance from 1.
fn uniform(word: u32) -> f32 {
    ((word >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0)
}

fn gumbel(word: u32) -> f32 {
    -(-uniform(word).ln()).ln()
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        counter = round(counter, key);
        key = next_key(key);
    }
    counter
}

#[inline(always)]
fn round(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let first = u64::from(counter[0]) * 0xD251_1F53;
    let second = u64::from(counter[2]) * 0xCD9E_8D57;
    [
        (second >> 32) as u32 ^ counter[1] ^ key[0],
        second as u32,
        (first >> 32) as u32 ^ counter[3] ^ key[1],
        first as u32,
    ]
}

#[inline(always)]
fn next_key(key: [u32; 2]) -> [u32; 2] {
    [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)]
}

/// The winner among `candidates`.
pub(crate) fn gumbel_max_of(key: RowKey, candidates: &[Candidate]) -> TokenId {
    let mut best = Candidate { x: f32::NEG_INFINITY, id: u32::MAX };
    for candidate in candidates {
        let x = candidate.x + key.gumbel(candidate.id);
        if x > best.x || (x == best.x && candidate.id < best.id) {
            best = Candidate { x, id: candidate.id };
        }
    }
    TokenId(best.id)
}

/// The winner among all ids with `x >= floor` that are not removed; the highest x is 0.
///
/// Few ids need a logarithm. An id can only beat the leader's sum b if its noise exceeds `b - x`; as
/// `-ln u >= 1 - u`, noise is at most `-ln(1 - u)`, so `e^x * e^-b` must exceed `1 - u`.
pub(crate) fn gumbel_max(
    path: VectorPath,
    key: RowKey,
    values: &[f32],
    floor: f32,
    powers: &mut Vec<f32>,
) -> TokenId {
    powers.clear();
    powers.extend_from_slice(values);
    exp_and_sum(path, powers, 0.0);
    let mut race =
        Race { best: Candidate { x: f32::NEG_INFINITY, id: u32::MAX }, bar: f32::INFINITY };
    let mut words = [[0; LANES]; 4];
    let mut consider = |stretch: usize, race: &mut Race| {
        let ids = stretch * STRETCH..values.len().min((stretch + 1) * STRETCH);
        if maximum(path, &powers[ids.clone()]) * race.bar < SMALLEST_GAP {
            return;
        }
        philox_lanes(path, key, (stretch * LANES) as u32, &mut words);
        for id in ids {
            let word = words[id % 4][id / 4 % LANES];
            let may_win = powers[id] * race.bar >= (1.0 - uniform(word)) * SLACK;
            if may_win && values[id] >= floor {
                race.enter(values[id] + gumbel(word), id as u32);
            }
        }
    };
    // The most likely token first: it sets a high bar.
    let leader = values.iter().position(|x| *x == 0.0).unwrap_or(0) / STRETCH;
    consider(leader, &mut race);
    for stretch in (0..values.len().div_ceil(STRETCH)).filter(|stretch| *stretch != leader) {
        consider(stretch, &mut race);
    }
    TokenId(race.best.id)
}

/// The leader, and `e^-x` of its sum.
struct Race {
    best: Candidate,
    bar: f32,
}

impl Race {
    fn enter(&mut self, x: f32, id: u32) {
        if x > self.best.x || (x == self.best.x && id < self.best.id) {
            self.best = Candidate { x, id };
            self.bar = (-x).exp();
        }
    }
}

per_path! {
    /// `philox` for `LANES` groups from `first` on: word w of group `first + i` goes to `out[w][i]`.
    fn philox_lanes(key: RowKey, first: u32, out: &mut [[u32; LANES]; 4]) = philox_lanes_body
}

#[inline(always)]
fn philox_lanes_body<A: Arithmetic>(key: RowKey, first: u32, out: &mut [[u32; LANES]; 4]) {
    let mut c0: [u32; LANES] = std::array::from_fn(|lane| first + lane as u32);
    let (mut c1, mut c2, mut c3) = ([key.position; LANES], [key.choice; LANES], [0; LANES]);
    let mut key = key.key;
    for _ in 0..ROUNDS {
        for lane in 0..LANES {
            [c0[lane], c1[lane], c2[lane], c3[lane]] =
                round([c0[lane], c1[lane], c2[lane], c3[lane]], key);
        }
        key = next_key(key);
    }
    *out = [c0, c1, c2, c3];
}

/// Groups computed together.
const LANES: usize = 16;
/// Ids of those groups.
const STRETCH: usize = 4 * LANES;
/// The smallest `1 - u`, less the slack.
const SMALLEST_GAP: f32 = SLACK / 16_777_216.0;
/// Makes up for rounding in exponentials and logarithms, whose relative errors are below 1e-5.
const SLACK: f32 = 0.9999;
const ROUNDS: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_philox_matches_the_published_vectors() {
        // From Random123's kat_vectors, philox4x32 10.
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn test_skipping_changes_no_winner() {
        let mut powers = Vec::new();
        for path in crate::vector_path::VectorPath::all() {
            for position in 0..300 {
                let key = RowKey::new(11 << 40 | 5, 2, position);
                // Steep and flat rows, some with removed ids.
                let scale = [1e-2, 1e-3, 1e-4, 0.0][position as usize % 4];
                let count = 5000 - position;
                let mut values: Vec<f32> = (0..count)
                    .map(|id| -scale * (id.wrapping_mul(2_654_435_761) >> 16) as f32)
                    .collect();
                if position % 3 == 0 {
                    values.iter_mut().skip(1).step_by(2).for_each(|x| *x = f32::NEG_INFINITY);
                }
                let all: Vec<Candidate> =
                    (0..).zip(&values).map(|(id, x)| Candidate { x: *x, id }).collect();
                let skipping = gumbel_max(path, key, &values, f32::NEG_INFINITY, &mut powers);
                assert_eq!(skipping, gumbel_max_of(key, &all), "position {position}");
            }
        }
    }
}
