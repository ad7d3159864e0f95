//! [2] Compiles grammars of requests. The caller's thread waits, at most as long as the budget says;
//! the work is done on a thread with a stack for deep grammars.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use llguidance::earley::SlicedBiasComputer;
use llguidance::{Matcher, ParserFactory};
use toktrie::InferenceCapabilities;

use super::bounds::{
    COMPILE_STACK_BYTES, MAX_CACHED, MAX_CACHED_BYTES, MAX_COMPILERS, parser_limits,
};
use super::cache::GrammarCache;
use super::source::Lark;
use super::vocabulary::token_tree;
use super::{Grammar, GrammarBudget, GrammarSource, GrammarSpec};
use crate::tools::ToolGrammar;
use crate::{TextError, Tokenizer};

/// Makes grammars for one model. Cheap to make: the tree of tokens is built on first use.
#[derive(Debug)]
pub struct GrammarFactory {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: Arc<Tokenizer>,
    model_vocab_size: u32,
    eos: Arc<[u32]>,
    parsers: OnceLock<Result<ParserFactory, String>>,
    cache: Mutex<GrammarCache>,
    compilers: Mutex<usize>,
    compiler_ended: Condvar,
}

impl GrammarFactory {
    /// `model_vocab_size`: rows of the model's last layer, the width of masks, whatever the tokenizer
    /// has. `eos_token_ids`: what ends an answer.
    pub fn new(tokenizer: Arc<Tokenizer>, model_vocab_size: u32, eos_token_ids: &[u32]) -> Self {
        let inner = Inner {
            tokenizer,
            model_vocab_size,
            eos: eos_token_ids.into(),
            parsers: OnceLock::new(),
            cache: Mutex::new(GrammarCache::new(MAX_CACHED, MAX_CACHED_BYTES)),
            compilers: Mutex::new(0),
            compiler_ended: Condvar::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The grammar of a request: from the cache, or compiled.
    ///
    /// Blocking: milliseconds for a new grammar, `budget.max_time` at most.
    ///
    /// # Errors
    /// `TextError::Input` naming the request's field: the grammar is malformed, asks for something
    /// that cannot be enforced, or exceeds the budget. Nothing is ever left unenforced.
    /// `TextError::CompilersBusy` if no compiler became free in time.
    pub fn compile(
        &self,
        spec: &GrammarSpec,
        budget: GrammarBudget,
    ) -> Result<Arc<Grammar>, TextError> {
        let refuse = |message: String| TextError::input(spec.field, message);
        let lark = spec.lark(budget, &self.inner.tokenizer).map_err(refuse)?;
        let key: Arc<str> = lark.text().into();
        if let Some(grammar) = self.inner.lock_cache().find(&key) {
            return Ok(grammar);
        }
        // Built once a model, at the first grammar: no part of this grammar's budget.
        self.inner.parsers().map_err(refuse)?;
        let deadline = Instant::now() + budget.max_time;
        let timed_out = || {
            let ms = budget.max_time.as_millis();
            refuse(format!("the grammar was not compiled within {ms} ms"))
        };
        if budget.max_time.is_zero() {
            return Err(timed_out());
        }
        let busy = TextError::CompilersBusy { field: spec.field };
        let permit = Permit::take(&self.inner, deadline).ok_or(busy)?;
        let (sender, receiver) = channel();
        let inner = Arc::clone(&self.inner);
        let (is_lark, tools) = match &spec.source {
            GrammarSource::Tools(tools) => (false, Some(tools.clone())),
            GrammarSource::Lark(_) => (true, None),
            _ => (false, None),
        };
        let compile = move || {
            let result = inner.compile_here(lark);
            let result = result.map_err(|message| {
                let message = if is_lark { message } else { own_words(message) };
                inner.blame(tools.as_ref(), message)
            });
            drop(permit);
            // Nobody waits any more if this came too late.
            let _ = sender.send(result);
        };
        std::thread::Builder::new()
            .name("ingle-grammar".into())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn(compile)
            .map_err(|error| refuse(format!("no thread to compile it: {error}")))?;
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(result) => {
                let grammar = result.map_err(refuse)?;
                let grammar = Arc::new(grammar);
                self.inner.lock_cache().insert(key, Arc::clone(&grammar));
                Ok(grammar)
            }
            Err(RecvTimeoutError::Timeout) => Err(timed_out()),
            Err(RecvTimeoutError::Disconnected) => Err(refuse("compiling it failed".into())),
        }
    }
}

impl Inner {
    fn lock_cache(&self) -> std::sync::MutexGuard<'_, GrammarCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile_here(&self, lark: Lark) -> Result<Grammar, String> {
        // llguidance catches its own panics; this is the last line of defence, since a schema must
        // not end the process, and no state of ours is involved.
        let made = catch_unwind(AssertUnwindSafe(|| {
            let parser = self.parsers()?.create_parser(lark.into_grammar());
            let mut matcher = Matcher::new(Ok(parser.map_err(|error| one_line(&error))?));
            // A grammar that allows nothing at all shows in its first mask; a start that is too
            // complex does too.
            if let Err(error) = matcher.deep_clone().compute_mask() {
                return Err(one_line(&error));
            }
            if matcher.is_error() {
                return Err(matcher.get_error().unwrap_or_default());
            }
            let _ = matcher.is_accepting();
            Ok(matcher)
        }));
        let matcher = made.unwrap_or_else(|_| Err("it cannot be compiled".into()))?;
        let vocab_size = self.tokenizer.vocab_size();
        Ok(Grammar::new(matcher, vocab_size, self.model_vocab_size, Arc::clone(&self.eos)))
    }

    /// The message, with the tool that is at fault in front, if one is.
    fn blame(&self, tools: Option<&ToolGrammar>, message: String) -> String {
        let fails = |alone: &ToolGrammar| {
            let lark = alone.lark().map(|text| Lark { parts: vec![("main", text)] });
            lark.and_then(|lark| self.compile_here(lark)).is_err()
        };
        let mut alone = tools.into_iter().flat_map(ToolGrammar::alone);
        match alone.find(|(_, grammar)| fails(grammar)) {
            Some((name, _)) => format!("{name}: {message}"),
            None => message,
        }
    }

    fn parsers(&self) -> Result<&ParserFactory, String> {
        self.parsers.get_or_init(|| self.parser_factory()).as_ref().map_err(String::clone)
    }

    fn parser_factory(&self) -> Result<ParserFactory, String> {
        let tree = token_tree(&self.tokenizer, &self.eos)?;
        let caps = InferenceCapabilities { ff_tokens: false, ..InferenceCapabilities::default() };
        let slices = SlicedBiasComputer::json_slices();
        let mut factory =
            ParserFactory::new(&tree, caps, &slices).map_err(|error| one_line(&error))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(factory)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("vocab_size", &self.model_vocab_size).finish_non_exhaustive()
    }
}

/// One of the few compilations that may run at a time.
struct Permit(Arc<Inner>);

impl Permit {
    fn take(inner: &Arc<Inner>, deadline: Instant) -> Option<Self> {
        let mut running = inner.compilers.lock().unwrap_or_else(PoisonError::into_inner);
        while *running >= MAX_COMPILERS {
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = inner.compiler_ended.wait_timeout(running, left);
            running = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *running += 1;
        Some(Self(Arc::clone(inner)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.compilers.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.compiler_ended.notify_one();
    }
}

/// The message without places in a grammar that we wrote around what the client sent.
fn own_words(message: String) -> String {
    let place = message.strip_prefix("at ").and_then(|rest| rest.split_once("): "));
    let rest = place.map_or(message.as_str(), |(_, rest)| rest);
    let rest = rest.strip_prefix("failed to compile JSON schema: ").unwrap_or(rest);
    if rest.starts_with("oneOf constraints") {
        // The library's advice is a setting that would let through what the schema forbids.
        return "oneOf is supported only where its options exclude each other; use anyOf".into();
    }
    rest.to_owned()
}

/// An error of the library as one line of bounded length. At this point it can quote the grammar,
/// which is the client's own, and no answer.
fn one_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    if text.starts_with("panic") {
        return "it cannot be compiled".into();
    }
    if text.starts_with("NoExtension") {
        return "nothing can match it".into();
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("it is refused").to_owned();
    // A regex is shown over several lines before the reason comes.
    let line = match lines.rfind(|line| line.starts_with("error: ")) {
        Some(reason) => format!("invalid regex: {}", &reason["error: ".len()..]),
        None => first,
    };
    line.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn test_a_busy_compiler_is_not_the_clients_fault() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/qwen3/tokenizer.json");
        let tokenizer = Tokenizer::from_json(&std::fs::read(path).unwrap(), None).unwrap();
        let factory = GrammarFactory::new(Arc::new(tokenizer), 512, &[1]);
        let source = GrammarSource::Choice(vec!["a".into()]);
        let spec = GrammarSpec { field: "guided_choice", source, reasoning: None };
        let budget =
            GrammarBudget { max_time: Duration::from_millis(20), ..GrammarBudget::default() };
        let soon = Instant::now() + Duration::from_secs(1);
        let permits: Vec<Permit> =
            (0..MAX_COMPILERS).filter_map(|_| Permit::take(&factory.inner, soon)).collect();
        assert_eq!(permits.len(), MAX_COMPILERS);
        let busy = factory.compile(&spec, budget);
        assert!(matches!(busy, Err(TextError::CompilersBusy { field: "guided_choice" })));
        drop(permits);
        factory.compile(&spec, GrammarBudget::default()).unwrap();
    }
}
