//! Ids of tool calls.

use super::ToolFormat;

/// Makes ids of calls that no other request has, given a seed that no other request has.
#[derive(Clone, Debug)]
pub(crate) struct CallIds {
    state: u64,
    short: bool,
}

impl CallIds {
    /// Ids as templates of this format accept them: Mistral's take nine letters and digits only.
    pub(crate) fn new(format: ToolFormat, seed: u64) -> Self {
        let short = matches!(format, ToolFormat::Mistral | ToolFormat::MistralNamed);
        Self { state: seed, short }
    }

    pub(crate) fn next(&mut self) -> String {
        let (prefix, len) = if self.short { ("", 9) } else { ("call_", 24) };
        let letters = (0..len).map(|_| char::from(LETTERS[(self.random() % 62) as usize]));
        prefix.chars().chain(letters).collect()
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
