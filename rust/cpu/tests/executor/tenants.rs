//! Two tenants on one executor: the bits of one do not depend on the other, nor on what earlier owners left
//! in blocks and slots.

use ingle_core::SamplingParams;

use super::harness::{Harness, Request, config};
use super::{MODEL, greedy, warm};

const NUM_TOKENS: usize = 6;
/// Far fewer than all pairs use: nearly every block has had another owner.
const NUM_BLOCKS_IN_USE: u32 = 40;

#[test]
fn test_pairs_are_bit_equal_with_and_without_a_neighbour() {
    run(100);
}

#[test]
#[ignore = "long"]
fn test_ten_thousand_pairs_are_bit_equal_with_and_without_a_neighbour() {
    run(10_000);
}

fn run(num_pairs: u32) {
    let mut shared = Harness::new(MODEL, &config(4));
    let mut random = Random(1);
    for pair in 0..num_pairs {
        let (prompt, params) = request(&mut random);
        // A fresh executor: its blocks are zeros, and nobody was in its slots.
        let mut alone = [Request::new(0, &prompt, params.clone())];
        Harness::new(MODEL, &config(4)).generate(&mut alone, NUM_TOKENS, 1000);

        let (other, other_params) = request(&mut random);
        let slot = random.below(16);
        let mut both = [
            Request::new(slot, &prompt, params),
            Request::new((slot + 1 + random.below(15)) % 16, &other, other_params),
        ];
        if random.below(2) == 0 {
            both.reverse();
        }
        shared.hand_out_from(random.below(NUM_BLOCKS_IN_USE));
        shared.generate(&mut both, NUM_TOKENS, 1 + random.below(40));
        let mine =
            both.iter().find(|request| request.slot.number() == slot).expect("it is one of them");
        assert_eq!(mine.output, alone[0].output, "pair {pair}: tokens");
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&mine.log_probs), bits(&alone[0].log_probs), "pair {pair}: log-probs");
    }
}

fn request(random: &mut Random) -> (Vec<u32>, SamplingParams) {
    let len = 1 + random.below(40);
    let prompt = (0..len).map(|_| random.below(500)).collect();
    let params = if random.below(2) == 0 { greedy() } else { warm(u64::from(random.below(1000))) };
    (prompt, params)
}

/// A small generator: a number gives the same pairs everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % end
    }
}
