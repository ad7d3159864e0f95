//! The template engine set up as transformers sets up Jinja2: blocks trimmed, `tojson` like Python's
//! `json.dumps`, Python's string and dict methods, `raise_exception`, `strftime_now`, loop controls.

use std::io;
use std::panic::AssertUnwindSafe;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, Value, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use super::{clock, json, source};
use crate::TextError;

/// Compiles a template, on a thread whose stack holds the deepest nesting that so long a source can have:
/// the parser recurses. Blocking.
pub(crate) fn compile(template: &str) -> Result<Environment<'static>, TextError> {
    if template.len() > MAX_SOURCE_BYTES {
        let message = format!("line 1: {} bytes, at most {MAX_SOURCE_BYTES}", template.len());
        return Err(TextError::load("chat template", message));
    }
    let failed = |what: String| TextError::load("chat template", format!("line 1: {what}"));
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("ingle-template".to_owned())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, || compile_here(template))
            .map_err(|error| failed(format!("no thread to compile it: {error}")))?
            .join()
            .unwrap_or_else(|_| Err(failed("the template engine gave up".to_owned())))
    })
}

fn compile_here(template: &str) -> Result<Environment<'static>, TextError> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| load_error(&error))?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
    });
    let rewritten = source::without_generation_tags(template);
    environment.add_template_owned(NAME, rewritten).map_err(|error| load_error(&error))?;
    Ok(environment)
}

fn load_error(error: &Error) -> TextError {
    let line = error.line().unwrap_or(0);
    let detail = error.detail().unwrap_or("cannot be compiled");
    TextError::load("chat template", format!("line {line}: {detail}"))
}

/// Renders with these variables; `now` in seconds since 1970.
pub(crate) fn render(
    environment: &Environment<'static>,
    context: serde_json::Map<String, serde_json::Value>,
    now: i64,
) -> Result<String, TextError> {
    let strftime_now = Value::from_function(move |format: String| {
        clock::strftime(now, &format)
            .map_err(|message| Error::new(ErrorKind::InvalidOperation, message))
    });
    let variables = context
        .into_iter()
        .map(|(key, value)| (key, Value::from(Serde(value))))
        .chain([("strftime_now".to_string(), strftime_now)]);
    let context = Value::from_pairs(variables);
    let mut out = CappedWriter::default();
    let template = environment.get_template(NAME).map_err(|error| failure(&error, false))?;
    // A template comes with a model: a panic of the interpreter over one must not reach the caller.
    let attempt = AssertUnwindSafe(|| template.render_captured_to(context, &mut out));
    let done = std::panic::catch_unwind(attempt)
        .map_err(|_| TextError::TemplateFailed("the template engine gave up".to_owned()))?;
    let (full, bytes) = (out.full, out.bytes);
    done.map_err(|error| failure(&error, full))?;
    String::from_utf8(bytes).map_err(|error| TextError::TemplateFailed(error.to_string()))
}

/// The error that a failed rendering becomes.
fn failure(error: &Error, full: bool) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
            return TextError::TemplateRefused(message.clone());
        }
        if inner.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return TextError::TemplateLimit { what: "steps", limit: FUEL };
        }
        cause = inner.source();
    }
    if full {
        return TextError::TemplateLimit { what: "bytes of output", limit: MAX_OUTPUT as u64 };
    }
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    TextError::TemplateFailed(format!("{}{detail}{line}", error.kind()))
}

/// What `raise_exception` said.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// `tojson` of transformers: `json.dumps(x, ensure_ascii=False, indent=None, separators=None,
/// sort_keys=False)`.
fn to_json(state: &State, value: &Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let rest = rest.into_values();
    let (positional, kwargs) = from_args::<(&[Value], Kwargs)>(&rest)?;
    let argument = |index: usize, name: &str| -> Result<Value, Error> {
        let given: Option<Value> = kwargs.get(name)?;
        Ok(given.or_else(|| positional.get(index).cloned()).unwrap_or(Value::from(())))
    };
    let layout = json::Layout::new(
        &argument(0, "ensure_ascii")?,
        &argument(1, "indent")?,
        &argument(2, "separators")?,
        &argument(3, "sort_keys")?,
    )?;
    kwargs.assert_all_used()?;
    let marks = state.lookup(MARKS);
    let marks = marks.as_ref().and_then(Value::as_str).unwrap_or_default();
    let layout = layout.with_marks(marks);
    Ok(Value::from(json::dumps(value, &layout)?))
}

/// Collects the output up to the cap.
#[derive(Debug, Default)]
struct CappedWriter {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for CappedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::Error::other("output cap"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The variable that holds the characters that stand for others during one rendering.
pub(crate) const MARKS: &str = "_marks_of_the_request";
const NAME: &str = "chat";
/// Larger than any template that is in use.
const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Address space, of which only what is touched becomes memory: 2 KiB for each byte of the source.
const COMPILE_STACK_BYTES: usize = 512 << 20;
/// Steps of the template engine; one is an instruction or 64 bytes of text made. A test renders
/// 2,000 messages of 5,000 characters with less; ten million are a second or two.
const FUEL: u64 = 10_000_000;
/// The largest prompt text that a template may write.
const MAX_OUTPUT: usize = 32 << 20;
