//! Everything between text and token ids: tokenizers from tokenizer.json, tokenizer.model,
//! tekken.json and GGUF, the incremental detokeniser, chat templates and the stop matcher. Of the
//! ingle crates it uses only jinja.
//!
//! Steps [2] (tokenise) and [7] (detokenise, stop rules) of the request path. All types are plain
//! data that any thread may use. Nothing blocks, reads a file or asks for the time.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod added;
mod answer;
mod answer_piece;
mod bad_words;
mod base64;
mod byte_level;
mod chat;
mod detokenizer;
mod ends;
mod error;
mod gguf;
mod grammar;
mod harmony;
mod hf;
mod marker;
mod merge;
mod pattern;
mod pipeline;
mod reasoning;
mod rendered;
mod sentencepiece;
mod spm;
mod stop;
mod tekken;
mod token_table;
mod tokenizer;
mod tokenizer_files;
mod tools;
mod words;

pub use answer::{AnswerParser, AnswerRules};
pub use answer_piece::AnswerPiece;
pub use bad_words::{
    AnswerText, BadWords, BadWordsFactory, BadWordsState, MAX_BAD_WORD_CHARS, MAX_BAD_WORDS,
};
pub use chat::{ChatInput, ChatTemplate, render_template};
pub use detokenizer::Detokenizer;
pub use ends::turn_ends;
pub use error::TextError;
pub use gguf::GgufVocab;
pub use grammar::{
    Grammar, GrammarBudget, GrammarError, GrammarFactory, GrammarSource, GrammarSpec, GrammarState,
    MAX_GUIDED_CHOICES, Reasoned,
};
pub use ingle_jinja::Effort;
pub use reasoning::{ReasoningFormat, ReasoningStart, ReasoningTags};
pub use rendered::RenderedPrompt;
pub use stop::StopMatcher;
pub use tokenizer::Tokenizer;
pub use tools::{CallPlace, ToolFormat, ToolGrammar, ToolRules, ToolSpec};
