//! [2] Compiles grammars of requests. The caller's thread waits, at most as long as the budget
//! allows. The work is done on a thread with a stack for deep grammars.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use llguidance::earley::SlicedBiasComputer;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use toktrie::InferenceCapabilities;

use super::bounds::{MAX_CACHED, MAX_CACHED_BYTES, parser_limits};
use super::cache::SourceCache;
use super::compilers::Compilers;
use super::schema::{json_rule_of_part, parts, place};
use super::source::Lark;
use super::vocabulary::token_tree;
use super::words::{self, NOTHING};
use super::{Grammar, GrammarBudget, GrammarSource, GrammarSpec};
use crate::tools::ToolGrammar;
use crate::{TextError, Tokenizer};

/// Makes grammars for one model. The tree of tokens is built with the first one.
#[derive(Debug)]
pub struct GrammarFactory {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: Arc<Tokenizer>,
    model_vocab_size: u32,
    eos: Arc<[u32]>,
    parsers: OnceLock<Result<ParserFactory, String>>,
    /// A mask of the tokens after which JSON is where it was: white space, and what ends an answer.
    blank: OnceLock<Arc<[u32]>>,
    grammars: Mutex<SourceCache<Arc<Grammar>>>,
    /// A refusal can take as long as a grammar does.
    refusals: Mutex<SourceCache<Arc<str>>>,
    compilers: Compilers,
}

/// A grammar, or a one-line reason why there is none.
type Outcome = Result<Arc<Grammar>, Arc<str>>;

/// What the caller of a compilation hears.
enum Progress {
    Begun,
    Done(Outcome),
}

impl GrammarFactory {
    /// Starts the threads that compile. `model_vocab_size`: rows of the model's last layer, the width of
    /// masks, whatever the tokenizer has. `eos_token_ids`: what ends an answer.
    ///
    /// # Errors
    /// The system's, if it gives no thread.
    pub fn start(
        tokenizer: Arc<Tokenizer>,
        model_vocab_size: u32,
        eos_token_ids: &[u32],
    ) -> io::Result<Self> {
        let inner = Inner {
            tokenizer,
            model_vocab_size,
            eos: eos_token_ids.into(),
            parsers: OnceLock::new(),
            blank: OnceLock::new(),
            grammars: Mutex::new(SourceCache::new(MAX_CACHED, MAX_CACHED_BYTES)),
            refusals: Mutex::new(SourceCache::new(MAX_CACHED, MAX_CACHED_BYTES)),
            compilers: Compilers::start()?,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The grammar of a request: from the cache, or compiled.
    ///
    /// Blocking: milliseconds for a new grammar; at most `budget.max_time` until a compiler is free, and
    /// as long again.
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
        let refuse = |message: &str| TextError::input(spec.field, message);
        let lark = spec.lark(budget, &self.inner.tokenizer).map_err(|error| refuse(&error))?;
        let mut task = Task::new(&spec.source, lark);
        if let Some(known) = self.inner.known(&task.key) {
            return known.map_err(|message| refuse(&message));
        }
        if let GrammarSource::JsonSchema(schema) = &spec.source {
            task.schema = Some(schema.clone());
        }
        // Built once a model, at the first grammar: no part of this grammar's budget.
        self.inner.parsers().map_err(|error| refuse(&error))?;
        let ms = budget.max_time.as_millis();
        let timed_out = || refuse(&format!("the grammar was not compiled within {ms} ms"));
        if budget.max_time.is_zero() {
            return Err(timed_out());
        }
        let (wanted, receiver) = self.queue(task, budget.tenant);
        let busy = || {
            wanted.store(false, Ordering::Relaxed);
            TextError::CompilersBusy { field: spec.field }
        };
        // Waiting is not this grammar's fault: its own time begins with its compilation.
        let mut next = receiver.recv_timeout(budget.max_time).map_err(|_| busy())?;
        if matches!(next, Progress::Begun) {
            next = receiver.recv_timeout(budget.max_time).map_err(|error| match error {
                RecvTimeoutError::Timeout => timed_out(),
                RecvTimeoutError::Disconnected => refuse(BROKEN),
            })?;
        }
        match next {
            Progress::Done(outcome) => outcome.map_err(|message| refuse(&message)),
            Progress::Begun => Err(refuse(BROKEN)),
        }
    }

    /// Hands a compilation to the threads. It is not begun once the flag is down.
    fn queue(&self, task: Task, tenant: u64) -> (Arc<AtomicBool>, Receiver<Progress>) {
        let (sender, receiver) = channel();
        let wanted = Arc::new(AtomicBool::new(true));
        let (inner, flag) = (Arc::clone(&self.inner), Arc::clone(&wanted));
        let job = move || {
            if flag.load(Ordering::Relaxed) {
                // Nobody waits any more if it comes too late; the next one finds what became of it.
                let report = |progress| _ = Sender::send(&sender, progress);
                report(Progress::Begun);
                report(Progress::Done(inner.compile_and_keep(task)));
            }
        };
        self.inner.compilers.put(tenant, Box::new(job));
        (wanted, receiver)
    }
}

/// One compilation.
struct Task {
    /// Of both caches: the whole source, and what errors are worded by.
    key: Arc<str>,
    lark: Lark,
    kind: Kind,
    tools: Option<ToolGrammar>,
    /// To find the part that is at fault.
    schema: Option<Value>,
}

/// Properties of a grammar other than its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The client's own text: errors are about it.
    Lark,
    /// The answer is one JSON value.
    Json,
    Other,
}

impl Task {
    fn new(source: &GrammarSource, lark: Lark) -> Self {
        let (kind, tools) = match source {
            GrammarSource::Tools(tools) => (Kind::Other, Some(tools.clone())),
            GrammarSource::Lark(_) => (Kind::Lark, None),
            GrammarSource::JsonObject | GrammarSource::JsonSchema(_) => (Kind::Json, None),
            GrammarSource::Regex(_) | GrammarSource::Choice(_) => (Kind::Other, None),
        };
        Self { key: format!("{kind:?}\0{}", lark.text()).into(), lark, kind, tools, schema: None }
    }
}

impl Inner {
    fn known(&self, key: &str) -> Option<Outcome> {
        if let Some(grammar) = lock(&self.grammars).find(key) {
            return Some(Ok(grammar));
        }
        lock(&self.refusals).find(key).map(Err)
    }

    fn compile_and_keep(&self, task: Task) -> Outcome {
        let Task { key, lark, kind, tools, schema } = task;
        // Another request may have asked for the same meanwhile.
        if let Some(known) = self.known(&key) {
            return known;
        }
        let compiled =
            self.compile_here(lark, kind).map_err(|message| match (kind, &tools, &schema) {
                (Kind::Lark, ..) => words::of_lark(&message),
                (_, Some(tools), _) => self.blame(tools, &message),
                (_, None, Some(schema)) => self.blame_part(schema, &message),
                _ => words::of_compilation(&message),
            });
        match compiled {
            Ok(grammar) => {
                let grammar = Arc::new(grammar);
                lock(&self.grammars).insert(key, Arc::clone(&grammar));
                Ok(grammar)
            }
            Err(message) => {
                let message: Arc<str> = message.into();
                lock(&self.refusals).insert(key, Arc::clone(&message));
                Err(message)
            }
        }
    }

    fn compile_here(&self, lark: Lark, kind: Kind) -> Result<Grammar, String> {
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
        let blank = (kind == Kind::Json).then(|| self.blank());
        let eos = Arc::clone(&self.eos);
        Ok(Grammar::new(matcher, vocab_size, self.model_vocab_size, eos, blank))
    }

    fn blank(&self) -> Arc<[u32]> {
        let make = || {
            let is_blank = |id: u32| {
                let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
                let is_space =
                    !bytes.is_empty() && bytes.iter().all(|byte| b" \t\r\n".contains(byte));
                self.eos.contains(&id) || (is_space && !self.tokenizer.is_special(id))
            };
            let mut words = vec![0_u32; self.model_vocab_size.div_ceil(32) as usize];
            let num_ids = self.tokenizer.vocab_size().min(self.model_vocab_size);
            for id in (0..num_ids).filter(|&id| is_blank(id)) {
                words[id as usize / 32] |= 1 << (id % 32);
            }
            words.into()
        };
        Arc::clone(self.blank.get_or_init(make))
    }

    /// The message, with the tool that is at fault in front, if one is, and the part of its schema.
    fn blame(&self, tools: &ToolGrammar, message: &str) -> String {
        for (name, alone, schema) in tools.alone() {
            let lark = alone.lark().map(|text| Lark { parts: vec![("main", text)] });
            if lark.and_then(|lark| self.compile_here(lark, Kind::Other)).is_err() {
                let reason = match schema {
                    Some(schema) => self.blame_part(&schema, message),
                    None => words::of_compilation(message),
                };
                return format!("{name}: {reason}");
            }
        }
        words::of_compilation(message)
    }

    /// The message, with the innermost part of the schema in front that cannot be compiled by itself.
    fn blame_part(&self, schema: &Value, message: &str) -> String {
        let deadline = Instant::now() + MAX_BLAME;
        let (mut pointer, mut reason) = (String::new(), message.to_owned());
        loop {
            let at_fault = parts(schema, &pointer).into_iter().find_map(|part| {
                let rule = json_rule_of_part(schema, &part.pointer).ok()?;
                if Instant::now() > deadline {
                    return None;
                }
                let lark = Lark { parts: vec![("main", format!("start: {rule}"))] };
                let error = self.compile_here(lark, Kind::Other).err()?;
                let counts = part.is_needed || !words::is_unsatisfiable(&error);
                counts.then_some((part.pointer, error))
            });
            match at_fault {
                Some(found) => (pointer, reason) = found,
                None => break,
            }
        }
        let words = words::of_compilation(&reason);
        if pointer.is_empty() { words } else { format!("{}: {words}", place(&pointer)) }
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks is left half-written by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error of the library as one line of bounded length. At this point it can quote the grammar,
/// which is the client's own, and no answer.
fn one_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    if text.starts_with("panic") {
        return "it cannot be compiled".into();
    }
    if text.starts_with("NoExtension") {
        return NOTHING.into();
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

/// How long the part of a schema that is at fault is looked for.
const MAX_BLAME: Duration = Duration::from_millis(200);

/// What is said of a compilation that ended without an outcome: a mistake of ours.
const BROKEN: &str = "compiling it failed";

#[cfg(test)]
mod tests {
    use super::super::bounds::MAX_COMPILERS;
    use super::*;

    fn factory() -> GrammarFactory {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/qwen3/tokenizer.json");
        let tokenizer = Tokenizer::from_json(&std::fs::read(path).unwrap(), None).unwrap();
        GrammarFactory::start(Arc::new(tokenizer), 512, &[1]).unwrap()
    }

    fn choice(text: &str) -> GrammarSpec {
        let source = GrammarSource::Choice(vec![text.into()]);
        GrammarSpec { field: "guided_choice", source, reasoning: None }
    }

    #[test]
    fn test_busy_compilers_are_not_the_clients_fault() {
        let factory = factory();
        let (go_on, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for tenant in 1..=MAX_COMPILERS {
            let gate = Arc::clone(&gate);
            let job = move || _ = gate.lock().unwrap().recv();
            factory.inner.compilers.put(tenant as u64, Box::new(job));
        }
        let budget =
            GrammarBudget { max_time: Duration::from_millis(20), ..GrammarBudget::default() };
        let busy = factory.compile(&choice("a"), budget);
        assert!(matches!(busy, Err(TextError::CompilersBusy { field: "guided_choice" })));
        drop(go_on);
        factory.compile(&choice("a"), GrammarBudget::default()).unwrap();
    }

    #[test]
    fn test_a_refusal_is_kept_like_a_grammar_and_names_the_field_of_each_request() {
        let factory = factory();
        let compile = |field: &'static str| {
            let source = GrammarSource::Lark("start: /a/ nothing".into());
            let spec = GrammarSpec { field, source, reasoning: None };
            factory.compile(&spec, GrammarBudget::default()).unwrap_err().to_string()
        };
        let first = compile("guided_grammar");
        // No compiler is needed for the second one: none would be there.
        let (go_on, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for tenant in 1..=MAX_COMPILERS {
            let gate = Arc::clone(&gate);
            let job = move || _ = gate.lock().unwrap().recv();
            factory.inner.compilers.put(tenant as u64, Box::new(job));
        }
        let began = Instant::now();
        let second = compile("structured_outputs");
        assert!(began.elapsed() < GrammarBudget::default().max_time);
        assert_eq!(
            first.strip_prefix("guided_grammar"),
            second.strip_prefix("structured_outputs"),
            "{first} {second}"
        );
        drop(go_on);
    }

    #[test]
    fn test_kept_refusals_are_bounded() {
        let factory = factory();
        for i in 0..MAX_CACHED + 5 {
            let source = GrammarSource::Lark(format!("start: /a/ nothing{i}"));
            let spec = GrammarSpec { field: "guided_grammar", source, reasoning: None };
            factory.compile(&spec, GrammarBudget::default()).unwrap_err();
        }
        let kept = |i: usize| {
            let lark = Lark { parts: vec![("main", format!("start: /a/ nothing{i}"))] };
            let source = GrammarSource::Lark(String::new());
            factory.inner.known(&Task::new(&source, lark).key).is_some()
        };
        assert!(!kept(0) && !kept(4) && kept(5) && kept(MAX_CACHED + 4));
    }
}
