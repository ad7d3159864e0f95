//! Finds tokens that end a turn but that no file lists as end tokens. At model load only.
//!
//! Base models and many GGUF files name only the token that ends a text. A chat would then continue
//! past `<|im_end|>` with an invented turn of the user. A token ends an answer if its name is one
//! that published models use to end turns and the chat template writes it.

use crate::Tokenizer;

/// The ids of tokens that end a turn in chats of this template.
pub fn turn_ends(tokenizer: &Tokenizer, template: &str) -> Vec<u32> {
    let written = |name: &str| template.contains(name);
    // In the harmony format a message ends before the answer does.
    let harmony = written("<|end|>") && written("<|return|>");
    TURN_ENDS
        .iter()
        .filter(|name| written(name) && !(harmony && **name == "<|end|>"))
        .filter_map(|name| tokenizer.marker_id(name))
        .collect()
}

/// How published models end a turn, a message to a tool, or a text.
const TURN_ENDS: [&str; 21] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<|END_OF_TURN_TOKEN|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "</s>",
    "<｜end▁of▁sentence｜>",
];
