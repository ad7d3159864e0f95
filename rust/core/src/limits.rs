//! [3] Limits of a request, checked before anything is allocated. Plain data, any thread.

use crate::{KvGroups, SchedulerConfig, TokenId};

/// The stateless part of admission: small and `Copy`, so that HTTP threads refuse what can never run
/// without asking the engine thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Prompt and output together.
    pub max_model_len: u32,
    /// KV blocks in the pool.
    pub num_blocks: u32,
    /// Tokens a block.
    pub block_size: u32,
    /// Groups of layers, each of which needs blocks.
    pub kv_groups: KvGroups,
    /// Steps that may be submitted at a time.
    pub max_steps_in_flight: u32,
    /// Ids below this exist.
    pub vocab_size: u32,
    /// Most requests that wait.
    pub max_queue: u32,
}

impl Limits {
    /// The limits that a scheduler of this configuration has.
    #[must_use]
    pub fn new(config: &SchedulerConfig) -> Self {
        Self {
            max_model_len: config.max_model_len,
            num_blocks: config.shape.num_blocks,
            block_size: config.shape.block_size,
            kv_groups: config.shape.kv_groups,
            max_steps_in_flight: config.shape.max_steps_in_flight,
            vocab_size: config.shape.vocab_size,
            max_queue: config.max_queue,
        }
    }

    /// Whether a request of these lengths can ever run. An embedding has `max_tokens` 0.
    ///
    /// # Errors
    /// `EmptyPrompt`, `TooLong`, `NeverFits`.
    pub fn check(&self, num_prompt_tokens: usize, max_tokens: u32) -> Result<(), AdmitError> {
        if num_prompt_tokens == 0 {
            return Err(AdmitError::EmptyPrompt);
        }
        let num_tokens = num_prompt_tokens.saturating_add(max_tokens as usize);
        if num_tokens > self.max_model_len as usize {
            return Err(AdmitError::TooLong {
                prompt_tokens: num_prompt_tokens,
                max_tokens,
                max_model_len: self.max_model_len,
            });
        }
        let needed_blocks = self.blocks_for(num_tokens.saturating_sub(usize::from(max_tokens > 0)));
        if needed_blocks > self.num_blocks {
            return Err(AdmitError::NeverFits {
                needed_blocks,
                num_blocks: self.num_blocks,
                block_size: self.block_size,
            });
        }
        Ok(())
    }

    /// Whether every id exists; an id beyond the embedding would be read outside of it.
    ///
    /// # Errors
    /// `UnknownToken` with the first that does not.
    pub fn check_tokens(&self, prompt: &[TokenId]) -> Result<(), AdmitError> {
        match prompt.iter().find(|token| token.0 >= self.vocab_size) {
            Some(&token) => Err(AdmitError::UnknownToken { token, vocab_size: self.vocab_size }),
            None => Ok(()),
        }
    }

    /// The longest request without `max_tokens` that fits the pool; 0 if none does.
    #[must_use]
    pub fn pool_tokens(&self) -> u32 {
        self.kv_groups.most_tokens(self.num_blocks, self.block_size, self.max_steps_in_flight)
    }

    /// Blocks that must be held at once to compute so many tokens; the last token sampled is never
    /// computed on.
    fn blocks_for(&self, num_computed: usize) -> u32 {
        let num_places = num_computed.div_ceil(self.block_size as usize);
        let num_places = u32::try_from(num_places).unwrap_or(u32::MAX);
        self.kv_groups.num_blocks(num_places, self.block_size, self.max_steps_in_flight)
    }
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Overloaded: the caller may come back later. All others are the caller's fault.
    #[error("{waiting} requests are waiting and the queue holds {max}")]
    QueueFull {
        /// Requests waiting now.
        waiting: u32,
        /// `max_queue`
        max: u32,
    },
    /// Prompt and output do not fit the context; at least one token must be left for the output.
    #[error(
        "the prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}, together more than \
         the context length of {max_model_len} tokens"
    )]
    TooLong {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// As asked for.
        max_tokens: u32,
        /// The served context length.
        max_model_len: u32,
    },
    /// The whole KV pool is too small for it.
    #[error(
        "the request needs up to {needed_blocks} KV blocks of {block_size} tokens and the pool has \
         {num_blocks}"
    )]
    NeverFits {
        /// At the request's longest.
        needed_blocks: u32,
        /// In the pool.
        num_blocks: u32,
        /// Tokens a block.
        block_size: u32,
    },
    /// There is nothing to compute.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// An id that the model has no embedding for.
    #[error("token id {token} of the prompt is not below the vocabulary size of {vocab_size}")]
    UnknownToken {
        /// The first such id.
        token: TokenId,
        /// Ids below this exist.
        vocab_size: u32,
    },
}

impl AdmitError {
    /// Whether the same request may be taken later.
    #[must_use]
    pub fn is_overload(&self) -> bool {
        matches!(self, Self::QueueFull { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_model_len: 100,
        num_blocks: 5,
        block_size: 16,
        kv_groups: KvGroups::ONE,
        max_steps_in_flight: 2,
        vocab_size: 50,
        max_queue: 3,
    };

    #[test]
    fn test_context_length_is_exact() {
        let limits = Limits { num_blocks: 1000, ..LIMITS };
        assert_eq!(limits.check(99, 1), Ok(()));
        assert_eq!(limits.check(100, 0), Ok(()), "an embedding needs no room for output");
        let error = limits.check(100, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the prompt has 100 tokens and max_tokens is 1, together more than the context length \
             of 100 tokens"
        );
        assert!(limits.check(1, u32::MAX).is_err());
        assert!(limits.check(usize::MAX, u32::MAX).is_err());
        assert!(!error.is_overload());
    }

    #[test]
    fn test_pool_size_is_exact() {
        assert_eq!(LIMITS.check(80, 1), Ok(()), "80 computed tokens fill 5 blocks");
        assert_eq!(
            LIMITS.check(80, 2),
            Err(AdmitError::NeverFits { needed_blocks: 6, num_blocks: 5, block_size: 16 })
        );
        assert_eq!(LIMITS.check(0, 1), Err(AdmitError::EmptyPrompt));
    }

    #[test]
    fn test_a_window_needs_no_blocks_for_what_it_has_passed() {
        let kv_groups = KvGroups::new(&[None, Some(17)]);
        let limits = Limits { num_blocks: 7, kv_groups, ..LIMITS };
        // 17 positions and one submitted ahead lie in at most 3 blocks of 16.
        assert_eq!(limits.check(64, 1), Ok(()), "4 blocks and 3");
        let error = limits.check(65, 1).unwrap_err();
        assert!(matches!(error, AdmitError::NeverFits { needed_blocks: 8, .. }), "{error}");
        assert_eq!(limits.pool_tokens(), 64);
        assert_eq!(LIMITS.pool_tokens(), 80);
    }

    #[test]
    fn test_unknown_ids_are_named() {
        assert_eq!(LIMITS.check_tokens(&[TokenId(0), TokenId(49)]), Ok(()));
        assert_eq!(
            LIMITS.check_tokens(&[TokenId(50)]).unwrap_err().to_string(),
            "token id 50 of the prompt is not below the vocabulary size of 50"
        );
    }
}
