//! [2] Compiles the bad words of a request. Runs on the caller's thread, off the event loop.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::mask::{BadWords, CompiledList};
use super::vocabulary::SortedVocabulary;
use super::words::WordList;
use crate::grammar::Reasoned;
use crate::reasoning::ReasoningFormat;
use crate::{TextError, Tokenizer};

/// Compiles words for one model. Cheap to make: the vocabulary is sorted on first use.
pub struct BadWordsFactory {
    tokenizer: Arc<Tokenizer>,
    model_vocab_size: u32,
    format: Option<ReasoningFormat>,
    shared: OnceLock<Shared>,
    /// The lists compiled last, the latest first.
    cache: Mutex<Vec<(Vec<String>, Arc<CompiledList>)>>,
}

/// What all lists of a model share.
struct Shared {
    vocabulary: Arc<SortedVocabulary>,
    special: Vec<u32>,
}

/// Which tokens of an answer are text that the client reads, and where its reasoning is.
#[derive(Clone, Debug, Default)]
pub struct AnswerText {
    /// Special tokens add nothing to the text.
    pub skip_special_tokens: bool,
    /// Special tokens that are text all the same, as markers are.
    pub kept: Vec<u32>,
    /// Ids that end the answer without being shown.
    pub ends: Vec<u32>,
    /// Where the answer may or must begin with reasoning, in which words may stand.
    pub reasoning: Option<Reasoned>,
}

impl BadWordsFactory {
    /// `model_vocab_size`: rows of the model's last layer, the width of masks. `format`: how it
    /// marks its reasoning.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        model_vocab_size: u32,
        format: Option<ReasoningFormat>,
    ) -> Self {
        let (shared, cache) = (OnceLock::new(), Mutex::default());
        Self { tokenizer, model_vocab_size, format, shared, cache }
    }

    /// Compiles `words` for answers of this kind.
    ///
    /// Blocking: two milliseconds for a new list of 128 ordinary words, tens at the very first.
    ///
    /// # Errors
    /// `TextError::Input` naming `bad_words`: there are too many words, or one of them is empty, too
    /// long, or has U+FFFD, which stands for bytes that are no text.
    pub fn compile(&self, words: &[String], text: AnswerText) -> Result<BadWords, TextError> {
        check(words).map_err(|message| TextError::input("bad_words", message))?;
        let shared = self.shared.get_or_init(|| self.share());
        let list = self.list(words, &shared.vocabulary);
        let hidden =
            shared.special.iter().filter(|id| text.skip_special_tokens && !text.kept.contains(id));
        let silent = hidden.chain(&text.ends).copied().filter(|&id| id < self.vocab_size());
        let silent = silent.collect();
        Ok(BadWords::new(list, silent, text.reasoning))
    }

    fn vocab_size(&self) -> u32 {
        self.tokenizer.vocab_size().min(self.model_vocab_size)
    }

    fn share(&self) -> Shared {
        let vocab_size = self.vocab_size();
        Shared {
            vocabulary: Arc::new(SortedVocabulary::new(Arc::clone(&self.tokenizer), vocab_size)),
            special: (0..vocab_size).filter(|&id| self.tokenizer.is_special(id)).collect(),
        }
    }

    /// Clients send the same words with each request.
    fn list(&self, words: &[String], vocabulary: &Arc<SortedVocabulary>) -> Arc<CompiledList> {
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cache = lock();
        if let Some(at) = cache.iter().position(|(known, _)| known == words) {
            let found = cache.remove(at);
            let list = Arc::clone(&found.1);
            cache.insert(0, found);
            return list;
        }
        drop(cache);
        let list = Arc::new(CompiledList::new(
            WordList::new(words, vocabulary),
            Arc::clone(vocabulary),
            self.format.clone(),
            self.vocab_size(),
            self.model_vocab_size,
        ));
        if words.iter().map(String::len).sum::<usize>() <= MAX_CACHED_BYTES {
            let mut cache = lock();
            cache.insert(0, (words.to_vec(), Arc::clone(&list)));
            cache.truncate(MAX_CACHED);
        }
        list
    }
}

fn check(words: &[String]) -> Result<(), String> {
    if words.len() > MAX_BAD_WORDS {
        return Err(format!(
            "must be a list of at most {MAX_BAD_WORDS} words, not {} words",
            words.len()
        ));
    }
    for (i, word) in words.iter().enumerate() {
        if word.is_empty() {
            return Err(format!("word {i} is empty"));
        }
        let length = word.chars().count();
        if length > MAX_BAD_WORD_CHARS {
            return Err(format!(
                "word {i} must be of 1 to {MAX_BAD_WORD_CHARS} characters, not {length}"
            ));
        }
        if word.contains(char::REPLACEMENT_CHARACTER) {
            return Err(format!(
                "word {i} has U+FFFD, which stands for bytes that are no text and cannot be banned"
            ));
        }
    }
    Ok(())
}

impl std::fmt::Debug for BadWordsFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = self.model_vocab_size;
        f.debug_struct("BadWordsFactory").field("vocab_size", &size).finish_non_exhaustive()
    }
}

/// Of one request.
pub const MAX_BAD_WORDS: usize = 128;
/// Of one of them.
pub const MAX_BAD_WORD_CHARS: usize = 256;
const MAX_CACHED: usize = 16;
/// Of a list's words together; it takes up to 30 times that.
const MAX_CACHED_BYTES: usize = 16 << 10;
