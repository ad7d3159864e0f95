//! [7] One choice of one prompt, from token ids to text: detokenizer, stop strings, log-probs. Engine
//! thread. Text that may still turn out to be a stop string is never sent.

mod finish;

use std::mem::offset_of;
use std::sync::Arc;

use ingle_core::{Micros, TokenId, TokenLogProbs};
use ingle_text::{AnswerParser, AnswerPiece, AnswerRules, Detokenizer, StopMatcher, Tokenizer};

use crate::answer_json::SplitAnswer;
use crate::choice_mask::ChoiceMask;
use crate::logprobs::LogEntry;
use crate::outbox::{Finish, StopCause};

/// The rules of a client request that its choices share.
#[derive(Debug)]
pub(crate) struct ChoiceRules {
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    /// Ids by which the model ends by itself.
    pub(crate) eos_token_ids: Arc<[TokenId]>,
    pub(crate) skip_special_tokens: bool,
    pub(crate) per_token: TokenRules,
}

/// Those that each token asks for; every choice has its own copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenRules {
    /// Stop strings match only in the text after this many tokens.
    pub(crate) min_tokens: u32,
    pub(crate) include_stop: bool,
    pub(crate) keep_log_probs: bool,
    pub(crate) keep_token_ids: bool,
    /// `max_tokens` was 0: the one token that the core computes is dropped.
    pub(crate) prompt_only: bool,
}

/// Text state of one choice.
///
/// What each token reads lies together, in this order; what few choices have is boxed.
#[repr(C)]
pub(crate) struct Choice {
    rules: TokenRules,
    /// `prompt_index * n + choice`.
    pub(crate) index: u32,
    /// Characters that the text had before the next token, shown or held back.
    num_chars: u32,
    pub(crate) num_output_tokens: u32,
    /// Something of this choice has been shown.
    pub(crate) started: bool,
    /// There may be something to show.
    pub(crate) dirty: bool,
    /// The core has ended it.
    pub(crate) is_over: bool,
    /// What constrains the tokens, if anything does.
    pub(crate) constraint: Option<Box<ChoiceMask>>,
    matcher: Option<Box<StopMatcher>>,
    /// Splits the text of a chat that has tools or reasoning; comes after the stop matcher.
    parser: Option<Box<AnswerParser>>,
    /// Ready to be shown; emptied by each event of a stream.
    pub(crate) text: String,
    detokenizer: Detokenizer,
    pub(crate) last_token_at: Micros,
    /// Set once; nothing changes after it.
    pub(crate) finish: Option<Box<Finish>>,
    pub(crate) first_token_at: Option<Micros>,
    pub(crate) scheduled_at: Micros,
    shared_rules: Arc<ChoiceRules>,
    /// Ready to be shown in place of `text`, if there is a parser; filled by `collect`.
    pieces: Vec<AnswerPiece>,
    /// Tokens since the last event of a stream, if kept.
    pub(crate) token_ids: Vec<u32>,
    /// Log-probs since the last event of a stream, if kept.
    pub(crate) log_probs: Vec<LogEntry>,
}

/// What came of tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pushed {
    /// A stop string was found, or the one allowed call is complete: the rest is dropped.
    pub(crate) is_stopped: bool,
    /// Bytes of their text.
    pub(crate) text_bytes: u64,
}

const _: () =
    assert!(offset_of!(Choice, first_token_at) <= 128, "what comes before is for each token");

impl Choice {
    /// `echo` stands in front of the text; `matcher` is there if the rules have stop strings.
    pub(crate) fn new(
        index: u32,
        rules: Arc<ChoiceRules>,
        matcher: Option<StopMatcher>,
        tokenizer: &Arc<Tokenizer>,
        echo: &str,
    ) -> Self {
        let detokenizer = Detokenizer::continuing(Arc::clone(tokenizer), rules.skip_special_tokens);
        Self {
            index,
            detokenizer,
            matcher: matcher.map(Box::new),
            parser: None,
            constraint: None,
            pieces: Vec::new(),
            text: echo.to_owned(),
            token_ids: Vec::new(),
            log_probs: Vec::new(),
            num_chars: if rules.per_token.keep_log_probs { count_chars(echo) } else { 0 },
            num_output_tokens: 0,
            finish: None,
            started: false,
            dirty: false,
            is_over: false,
            scheduled_at: Micros(0),
            first_token_at: None,
            last_token_at: Micros(0),
            rules: rules.per_token,
            shared_rules: rules,
        }
    }

    /// Says what stands before the answer; `is_shown` in front of it.
    pub(crate) fn follow(&mut self, prompt: &[TokenId], is_shown: bool) {
        self.detokenizer.take_over(prompt.iter().map(|id| id.0), is_shown);
    }

    /// Splits the answer into reasoning, content and tool calls. `markers`: special tokens that stay
    /// in the text for that.
    pub(crate) fn split(&mut self, rules: &AnswerRules, id_seed: u64, markers: &[u32]) {
        self.detokenizer.keep(markers.iter().copied());
        self.parser = Some(Box::new(AnswerParser::new(rules, id_seed)));
    }

    /// Takes tokens in order; `ends` says that the core ended the request with the last of them by
    /// its id.
    pub(crate) fn push(
        &mut self,
        tokens: &[TokenId],
        log_probs: Vec<TokenLogProbs>,
        ends: bool,
        scratch: &mut String,
    ) -> Pushed {
        let mut pushed = Pushed::default();
        if self.rules.prompt_only || self.finish.is_some() {
            return pushed;
        }
        let mut log_probs = log_probs.into_iter();
        for (i, &token) in tokens.iter().enumerate() {
            self.num_output_tokens += 1;
            if self.rules.keep_token_ids {
                self.token_ids.push(token.0);
            }
            if let (true, Some(source)) = (self.rules.keep_log_probs, log_probs.next()) {
                self.log_probs.push(LogEntry::new(source, self.num_chars));
            }
            let is_end = ends && i + 1 == tokens.len();
            if is_end && !self.rules.include_stop {
                continue;
            }
            scratch.clear();
            self.detokenizer.push(token.0, scratch);
            pushed.text_bytes += scratch.len() as u64;
            if self.take_text(scratch) {
                pushed.is_stopped = true;
                return pushed;
            }
        }
        pushed
    }

    /// Prompt log-probs of an echo, in front of everything else.
    pub(crate) fn push_prompt(&mut self, entries: &[LogEntry]) {
        if self.rules.keep_log_probs {
            self.log_probs.extend_from_slice(entries);
        }
    }

    /// Passes certain text through the stop matcher and the parser; true if either ends the choice.
    fn take_text(&mut self, text: &str) -> bool {
        if self.rules.keep_log_probs {
            self.num_chars += count_chars(text);
        }
        match &mut self.matcher {
            Some(matcher) if self.num_output_tokens > self.rules.min_tokens => {
                if let Some(which) = matcher.push(text, &mut self.text) {
                    self.finish_with(
                        "stop",
                        StopCause::Text(self.shared_rules.stop[which].clone()),
                    );
                    return true;
                }
            }
            _ => self.text.push_str(text),
        }
        self.parse();
        if self.parser.as_ref().is_some_and(|parser| parser.is_complete()) {
            // The one allowed call is complete, so further text would be of no use.
            self.finish_with("stop", StopCause::None);
        }
        self.finish.is_some()
    }

    /// Text that has passed the stop matcher goes on to the parser.
    fn parse(&mut self) {
        if let Some(parser) = &mut self.parser {
            parser.push(&self.text);
            self.text.clear();
        }
    }

    /// Whether an event of this choice is due: text, a piece, or the end.
    pub(crate) fn has_news(&self) -> bool {
        self.finish.is_some()
            || !self.text.is_empty()
            || self.parser.as_ref().is_some_and(|parser| parser.has_pieces())
    }

    /// Gets the pieces ready that an event or a body is about to show.
    pub(crate) fn collect(&mut self) {
        if let Some(parser) = &mut self.parser {
            self.pieces = parser.take();
        }
    }

    /// The pieces of an answer that is split.
    pub(crate) fn pieces(&self) -> Option<SplitAnswer<'_>> {
        let parser = self.parser.as_ref()?;
        Some(SplitAnswer { pieces: &self.pieces, has_only_calls: parser.has_only_calls() })
    }

    /// Empties what an event has shown; capacity stays.
    pub(crate) fn shown(&mut self) {
        self.started = true;
        self.text.clear();
        if self.parser.is_some() {
            self.pieces.clear();
        }
        if self.rules.keep_token_ids {
            self.token_ids.clear();
        }
        if self.rules.keep_log_probs {
            self.log_probs.clear();
        }
    }
}

fn count_chars(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX)
}
