//! Random bits without state: Philox4x32-10 (Salmon et al. 2011) and the Gumbel-max choice made with it.
//!
//! The key is the seed's low and high word. The counter is `(id / 4, output position, choice index, 0)`;
//! word `id % 4` of the result belongs to token `id`. So a token's noise depends on nothing but seed,
//! choice, position and id: not on the batch, not on preemption, not on which other ids are considered.

use ingle_core::TokenId;

use super::filter::Candidate;
use crate::elementwise::maximum;
use crate::vector_path::VectorPath;

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

    /// Noise of the four ids from `4 * group` on.
    fn gumbel(&self, group: u32) -> [f32; 4] {
        philox([group, self.position, self.choice, 0], self.key).map(|word| {
            let uniform = ((word >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0);
            -(-uniform.ln()).ln()
        })
    }
}

/// Ten rounds.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let first = u64::from(counter[0]) * 0xD251_1F53;
        let second = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// The winner among `candidates`.
pub(crate) fn gumbel_max_of(key: RowKey, candidates: &[Candidate]) -> TokenId {
    let mut best = Candidate { x: f32::NEG_INFINITY, id: u32::MAX };
    for candidate in candidates {
        let x = candidate.x + key.gumbel(candidate.id / 4)[candidate.id as usize % 4];
        if x > best.x || (x == best.x && candidate.id < best.id) {
            best = Candidate { x, id: candidate.id };
        }
    }
    TokenId(best.id)
}

/// The winner among all ids with `x >= floor` that are not removed. Noise is at most `MAX_GUMBEL`, so a
/// stretch of ids whose best x lies further below the leader needs no random numbers.
pub(crate) fn gumbel_max(path: VectorPath, key: RowKey, values: &[f32], floor: f32) -> TokenId {
    let mut best = Candidate { x: f32::NEG_INFINITY, id: u32::MAX };
    let mut consider = |start: usize, part: &[f32]| {
        for (offset, four) in part.chunks(4).enumerate() {
            let first = start + 4 * offset;
            if four.iter().all(|x| x + MAX_GUMBEL < best.x) {
                continue;
            }
            for ((id, x), noise) in (first..).zip(four).zip(key.gumbel(first as u32 / 4)) {
                let sum = x + noise;
                let id = id as u32;
                if *x >= floor && (sum > best.x || (sum == best.x && id < best.id)) {
                    best = Candidate { x: sum, id };
                }
            }
        }
        best.x
    };
    // The most likely token first: it sets a high bar.
    let max = maximum(path, values);
    let leader = values.iter().position(|x| *x == max).unwrap_or(0) / STRETCH * STRETCH;
    let mut bar = consider(leader, &values[leader..(leader + STRETCH).min(values.len())]);
    for (start, part) in (0..).step_by(STRETCH).zip(values.chunks(STRETCH)) {
        if start != leader && maximum(path, part) + MAX_GUMBEL >= bar {
            bar = consider(start, part);
        }
    }
    TokenId(best.id)
}

/// Ids looked at together; a multiple of 4.
const STRETCH: usize = 256;
/// Above the largest noise, `-ln(-ln(1 - 2^-24))` = 16.636.
const MAX_GUMBEL: f32 = 16.64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuPath;

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
        let path = crate::vector_path::VectorPath::resolve(CpuPath::Auto).expect("path");
        for position in 0..200 {
            let key = RowKey::new(11, 0, position);
            // Steep and flat rows.
            let scale = if position % 2 == 0 { 1e-2 } else { 1e-4 };
            let values: Vec<f32> = (0..5000u32)
                .map(|id| -scale * (id.wrapping_mul(2_654_435_761) >> 16) as f32)
                .collect();
            let all: Vec<Candidate> =
                (0..).zip(&values).map(|(id, x)| Candidate { x: *x, id }).collect();
            let skipping = gumbel_max(path, key, &values, f32::NEG_INFINITY);
            assert_eq!(skipping, gumbel_max_of(key, &all), "position {position}");
        }
    }
}
