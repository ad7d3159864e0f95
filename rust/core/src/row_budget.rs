//! [4] How many token rows a step may have while requests decode. Pure.
//!
//! Every row of a step delays the next token of all requests that decode in it. Up to some number of
//! rows a prompt token costs little, because the weights are read anyway; a step of that many rows is
//! the steady one. When prompts have waited for some time, or few requests decode, steps grow towards
//! the busy number, which bounds the pause of a decoding request. Where prompts still pile up behind
//! many decodes, steps grow to their limit: reading the keys and values of all decoding requests is a
//! large part of such a step, and a longer one shares it among more prompt tokens.
//!
//! A step also grows to its part of the backlog, so that a few prompts that come together have their first
//! tokens after two steps or three, before any of them is late. The work is the same, only sooner.

use crate::{ExecutorShape, Micros};

/// Most token rows of a step with `num_decodes` rows that decode, where the prompt that has waited longest
/// for its first token has waited for `waited`, and all prompts together have `backlog` tokens to go.
pub(crate) fn row_budget(
    shape: &ExecutorShape,
    num_decodes: u32,
    waited: Micros,
    backlog: u64,
) -> u32 {
    let most = shape.max_num_batched_tokens;
    if num_decodes == 0 {
        return most;
    }
    // Prompts make progress however many requests decode: by a whole tile at least.
    let steady = shape.steady_rows.max(num_decodes.saturating_add(shape.row_tile)).min(most);
    let busy = shape.busy_rows.clamp(steady, most);
    let pause = shape.pause.0;
    let late_range = (pause * LATE_THIRDS / 3).max(1);
    let lateness = |patience| waited.0.saturating_sub(patience).min(late_range) * ONE / late_range;
    let late = lateness(pause);
    let few = u64::from(FEW_DECODES.saturating_sub(num_decodes)) * ONE / u64::from(FEW_DECODES);
    let piled_up = lateness(pause + late_range) * (ONE - few) / ONE;
    let growth =
        (u64::from(busy - steady) * late.max(few) + u64::from(most - busy) * piled_up) / ONE;
    let clearing = (u64::from(num_decodes) + backlog / CLEARING_STEPS).min(u64::from(most));
    let rows = (u64::from(steady) + growth).max(clearing);
    // Round to whole tiles: a part of a tile costs as much as all of it.
    let tile = u64::from(shape.row_tile);
    let nearest = (rows + tile / 2) / tile * tile;
    u32::try_from(nearest).unwrap_or(most).clamp(steady, most)
}

/// Steps grow to their busy size over this many thirds of a pause, which a prompt waits beyond the first one, and to
/// their largest size over as many again.
const LATE_THIRDS: u64 = 10;
/// A step is sized so that the waiting prompts would take this many equal steps if no more arrived.
const CLEARING_STEPS: u64 = 2;
/// With this many decoding requests or more, their pauses count in full.
const FEW_DECODES: u32 = 64;
/// Fixed point of the growth.
const ONE: u64 = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor_shape::of_an_h200 as shape;

    #[test]
    fn alone_a_prompt_gets_the_whole_step() {
        assert_eq!(row_budget(&shape(), 0, Micros(0), 0), 2048);
    }

    #[test]
    fn beside_many_decodes_steps_stay_short_until_prompts_are_late() {
        let budget = |ms: u64| row_budget(&shape(), 200, Micros(ms * 1000), 0);
        assert_eq!([0, 40, 80, 120, 130].map(budget), [384, 512, 896, 1280, 1408]);
    }

    /// What is late follows from the device: on one whose steps take twice as long, prompts wait twice as long.
    #[test]
    fn patience_is_a_step_of_the_device() {
        let slow = ExecutorShape { pause: Micros(60_000), ..shape() };
        for waited in [0, 40, 80, 120, 130, 230] {
            let slowly = row_budget(&slow, 200, Micros(2 * waited * 1000), 0);
            assert_eq!(slowly, row_budget(&shape(), 200, Micros(waited * 1000), 0), "{waited} ms");
        }
        let instant = ExecutorShape { pause: Micros(0), ..shape() };
        assert_eq!(row_budget(&instant, 200, Micros(1), 0), 1408);
    }

    #[test]
    fn where_prompts_pile_up_behind_many_decodes_steps_grow_to_their_limit() {
        let budget = |ms: u64| row_budget(&shape(), 200, Micros(ms * 1000), 0);
        assert_eq!([130, 180, 230, 5000].map(budget), [1408, 1792, 2048, 2048]);
        // With few requests decoding, a shorter step would gain little.
        assert_eq!(row_budget(&shape(), 1, Micros(5_000_000), 0), 1408);
        assert_eq!(row_budget(&shape(), 32, Micros(5_000_000), 0), 1792);
    }

    #[test]
    fn steps_grow_with_the_backlog_before_prompts_are_late() {
        let budget = |backlog| row_budget(&shape(), 200, Micros(0), backlog);
        assert_eq!(
            [0, 300, 440, 1000, 2000, 1 << 40].map(budget),
            [384, 384, 384, 640, 1152, 2048]
        );
        // What lateness gives already is not added to it.
        assert_eq!(row_budget(&shape(), 200, Micros(130_000), 2000), 1408);
    }

    #[test]
    fn few_decodes_hold_prompts_up_less() {
        let budget = |decodes| row_budget(&shape(), decodes, Micros(0), 0);
        assert_eq!([1, 16, 48, 64].map(budget), [1408, 1152, 640, 384]);
    }

    #[test]
    fn prompts_go_on_however_many_requests_decode() {
        for decodes in 1..=1024 {
            let mut shape = shape();
            shape.max_num_seqs = 1024;
            let budget = row_budget(&shape, decodes, Micros(0), 0);
            assert!(budget >= decodes + 128 && budget <= 2048, "{decodes}: {budget}");
            // A step that has room for the decoding requests alone still holds all of them.
            shape.max_num_batched_tokens = decodes;
            assert_eq!(row_budget(&shape, decodes, Micros(0), 0), decodes);
        }
    }

    /// An executor without a preference has the step's own limit in both fields.
    #[test]
    fn without_a_preference_the_step_is_the_limit() {
        let (steady_rows, busy_rows) = (2048, 2048);
        let shape = ExecutorShape { steady_rows, busy_rows, row_tile: 1, ..shape() };
        for (decodes, waited) in [(1, 0), (200, 0), (200, 1_000_000)] {
            assert_eq!(row_budget(&shape, decodes, Micros(waited), 0), 2048);
        }
    }
}
