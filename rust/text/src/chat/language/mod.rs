//! [2] The language of chat templates: Jinja2 as transformers sets it up. Parsed by minijinja,
//! rendered by our own interpreter.
//!
//! A template comes with the model and its input with the request, so neither may hang, crash or
//! swell the process. That cannot be had from an interpreter that walks native values without
//! counting (docs/decisions). Here each step is paid for before it is done (`work`), nesting is
//! bounded in the source (`lower`), in values (`value`) and while running (`run`), no value contains
//! itself, and nothing is loaded, executed or read but the variables.

mod args;
mod checks;
mod eval;
mod fault;
mod filters;
mod format;
mod functions;
mod json;
mod lists;
mod loops;
mod lower;
mod methods;
mod numbers;
mod ops;
mod print;
mod program;
mod run;
mod slices;
mod strings;
mod texts;
mod value;
mod work;

use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

use self::lower::Refusal;
use self::program::Program;
use self::run::Run;
use self::value::Value;
use self::work::Work;
use crate::TextError;

/// A compiled template.
#[derive(Debug)]
pub(crate) struct Template {
    program: Program,
}

/// What a rendering is given beside the variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given<'r> {
    /// Characters that stand for ASCII ones until the text is rendered; `tojson` leaves them alone.
    pub(crate) marks: &'r str,
    /// The time for `strftime_now`, in seconds since 1970, UTC.
    pub(crate) now: i64,
    /// Bytes of the request, which the budget grows with.
    pub(crate) input_bytes: usize,
}

impl Template {
    /// Compiles a template, on a thread whose stack is large enough for any source that is allowed.
    ///
    /// # Errors
    /// `TextError::Load` with the line of what is wrong.
    pub(crate) fn compile(source: &str) -> Result<Self, TextError> {
        let load = |message: String| TextError::load("chat template", message);
        if source.len() > MAX_SOURCE_BYTES {
            let length = source.len();
            return Err(load(format!("has {length} bytes; at most {MAX_SOURCE_BYTES} are read")));
        }
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(COMPILE_STACK_BYTES);
            let compile = || catch_unwind(AssertUnwindSafe(|| compile_here(source)));
            let thread = thread.name("ingle-template".into()).spawn_scoped(scope, compile);
            let thread = thread.map_err(|error| format!("no thread to compile it: {error}"))?;
            thread.join().and_then(|made| made).map_err(|_| "cannot be compiled".to_owned())
        });
        let program = compiled.map_err(load)?;
        let program =
            program.map_err(|Refusal { line, message }| load(format!("line {line}: {message}")))?;
        Ok(Self { program })
    }

    /// Renders with these variables. On the caller's thread, within 1 MiB of its stack.
    ///
    /// # Errors
    /// `TemplateRefused` with the template's own message, `TemplateFailed` if these variables do not
    /// fit the template, `TemplateLimit`.
    pub(crate) fn render(
        &self,
        variables: serde_json::Map<String, serde_json::Value>,
        given: Given,
    ) -> Result<String, TextError> {
        let work = Work::for_input(given.input_bytes);
        let mut run = Run::new(&self.program, &work, given);
        for (name, value) in variables {
            run.define(&name, Value::from_json(value)?);
        }
        Ok(run.whole()?)
    }
}

fn compile_here(source: &str) -> Result<Program, Refusal> {
    let refuse = |error: &minijinja::Error| Refusal {
        line: error.line().and_then(|line| u16::try_from(line).ok()).unwrap_or(0),
        message: error.detail().unwrap_or("cannot be compiled").to_owned(),
    };
    let mut syntax = SyntaxConfig::builder();
    let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build();
    let parsed = parse(source, "chat", syntax.map_err(|error| refuse(&error))?);
    lower::lower(&parsed.map_err(|error| refuse(&error))?)
}

/// The largest template in use has some 40 kB.
const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Virtual size; only touched pages cost memory. The parser recurses once for some two bytes of a
/// hostile source, with up to 1 kB each time.
const COMPILE_STACK_BYTES: usize = 512 << 20;
