//! The shapes of steps whose graphs are recorded at start. A locked-down process records none later, so a shape that
//! is missing here is launched kernel by kernel for ever: seldom ones alone may be. Pure.

use std::collections::HashSet;

use crate::contract::PROMPT_ROWS;
use crate::dims::LIST_ROWS;
use crate::model::StepShape;
use crate::prompt_launch::is_prompt;

/// Steps of decodes first, then mixed ones, since under load nearly every step carries prompts; then steps of parts of
/// prompts alone, and mixed ones whose prompts are short or the ends of long ones.
///
/// `sizes`: padded row counts, rising. `prompt_group`: query heads a KV head where prompts have a kernel of their own.
pub(crate) fn step_shapes(
    sizes: &[u32],
    rows_max: u32,
    prompt_group: Option<u32>,
) -> Vec<StepShape> {
    let has_prompts = prompt_group.is_some();
    let fills_tile = |tokens| prompt_group.is_some_and(|group| is_prompt(0, tokens, group));
    let few = || sizes.iter().copied().filter(|&tokens| tokens <= LIST_ROWS);
    let many = || sizes.iter().copied().filter(|&tokens| tokens > LIST_ROWS);
    let samples_of_many =
        || (64..=rows_max.next_multiple_of(64).min(LIST_ROWS)).step_by(64).collect::<Vec<_>>();
    let mixed = |tokens, has_prompts| {
        let shape = move |samples| StepShape { tokens, samples, has_prompts };
        samples_of_many().into_iter().map(shape)
    };

    let most_decodes = rows_max.next_multiple_of(16);
    let mut shapes: Vec<StepShape> = few()
        .filter(|&tokens| tokens <= most_decodes)
        .map(|tokens| StepShape { tokens, samples: tokens, has_prompts: false })
        .collect();
    shapes.extend(many().flat_map(|tokens| mixed(tokens, has_prompts)));
    let prompts = |tokens, samples| StepShape { tokens, samples, has_prompts: true };
    shapes.extend(few().filter(|&tokens| fills_tile(tokens)).map(|tokens| prompts(tokens, tokens)));
    shapes.extend(many().map(|tokens| StepShape { tokens, samples: 0, has_prompts }));
    shapes.extend(few().filter(|&tokens| fills_tile(tokens)).map(|tokens| prompts(tokens, 0)));
    if let Some(group) = prompt_group {
        // The longest end of a prompt that is left to the kernel of decodes; a step has hardly more than one.
        let most = most_decodes.min(LIST_ROWS) + 4 * PROMPT_ROWS / group;
        shapes.extend(
            many().filter(|&tokens| tokens <= most).flat_map(|tokens| mixed(tokens, false)),
        );
    }
    shapes
}

/// The row counts of products that recording graphs of these shapes runs.
#[derive(Debug)]
pub(crate) struct RecordedRows {
    layers: HashSet<u32>,
    head: HashSet<u32>,
}

impl RecordedRows {
    /// Of all these shapes together.
    pub(crate) fn of(shapes: &[StepShape]) -> Self {
        Self {
            layers: shapes.iter().map(|shape| shape.tokens).collect(),
            head: shapes.iter().map(|shape| shape.samples).collect(),
        }
    }

    /// Whether a product of `rows` is among them; `is_head`: that with the output matrix.
    pub(crate) fn has(&self, rows: u32, is_head: bool) -> bool {
        let recorded = if is_head { &self.head } else { &self.layers };
        recorded.contains(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dims::Buckets;

    /// The shape that the executor asks for.
    fn asked(buckets: &Buckets, tokens: u32, samples: u32, has_prompts: bool) -> StepShape {
        let tokens = buckets.fit(tokens).unwrap();
        StepShape { tokens, samples: buckets.fit_samples(tokens, samples).unwrap(), has_prompts }
    }

    #[test]
    fn what_a_served_load_needs_is_there_once() {
        let buckets = Buckets::up_to(2048);
        let (group, rows_max) = (4, 256);
        let shapes = step_shapes(buckets.sizes(), rows_max, Some(group));
        let there: HashSet<StepShape> = shapes.iter().copied().collect();
        assert_eq!(there.len(), shapes.len());
        for decodes in 0..=rows_max {
            for chunk in [0, 1, 31, 32, 64, 100, 255, 256, 700, 1500, 2048] {
                let tokens = decodes + chunk;
                if !(1..=2048).contains(&tokens) {
                    continue;
                }
                // At the beginning of a prompt, and at the end of a long one.
                for start in [0, 1000] {
                    let has_prompts = is_prompt(start, chunk, group);
                    let sampled = asked(&buckets, tokens, (decodes + 1).min(rows_max), has_prompts);
                    assert!(
                        there.contains(&sampled),
                        "{decodes} + {chunk} at {start}: {sampled:?}"
                    );
                }
            }
        }
        for chunk in [256, 300, 1000, 2048] {
            assert!(there.contains(&asked(&buckets, chunk, 0, true)), "part of {chunk}");
        }
    }

    /// Lists of prompt log-probs use row counts of the head that no small server's graph has.
    #[test]
    fn rows_of_layers_and_of_the_head_are_recorded_apart() {
        let shapes = step_shapes(Buckets::up_to(512).sizes(), 16, None);
        let recorded = RecordedRows::of(&shapes);
        assert!(recorded.has(16, false) && recorded.has(16, true));
        assert!(recorded.has(512, false) && !recorded.has(512, true));
        assert!(!recorded.has(128, true), "{recorded:?}");
    }

    #[test]
    fn without_a_kernel_for_prompts_there_is_one_shape_of_each_size() {
        let buckets = Buckets::up_to(512);
        let shapes = step_shapes(buckets.sizes(), 64, None);
        assert!(shapes.iter().all(|shape| !shape.has_prompts));
        assert_eq!(shapes.iter().collect::<HashSet<_>>().len(), shapes.len());
        assert!(shapes.contains(&StepShape { tokens: 512, samples: 64, has_prompts: false }));
        assert!(shapes.contains(&StepShape { tokens: 512, samples: 0, has_prompts: false }));
    }
}
