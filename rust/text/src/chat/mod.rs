//! [2] Renders chat messages with the model's Jinja template, as Hugging Face transformers does.
//! Any thread; long chats use the submit threads. The template comes with the model and the
//! messages with the request; neither is trusted. Work and output are bounded, and nothing is
//! loaded or executed.

mod clock;
mod input;

use ingle_jinja::{Context, Effort, RenderError, Source, Template};
use serde_json::{Map, Value, json};

use crate::error::bounded;
use crate::{RenderedPrompt, TextError, Tokenizer};
pub use input::ChatInput;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    named: Vec<(String, String)>,
    is_costly: bool,
    reads_effort: bool,
}

impl ChatTemplate {
    /// Compiles a template for a model of which only two tokens are known.
    ///
    /// # Errors
    /// `TextError::Load` with the line of a syntax error.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TextError> {
        let named = [("bos_token", bos_token), ("eos_token", eos_token)];
        let named = named.map(|(key, token)| (key.to_string(), token.to_string())).to_vec();
        Self::tried(source, named)
    }

    /// Compiles a template for a tokenizer, whose named tokens it may use: the usual way.
    ///
    /// # Errors
    /// `TextError::Load` with the line of a syntax error.
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let named = tokenizer.named_tokens().to_vec();
        Self::tried(source, named)
    }

    /// Whether the template has a variable for the length of the reasoning.
    pub fn reads_effort(&self) -> bool {
        self.reads_effort
    }

    /// Renders the shortest chat, to see whether the template does much work whatever the chat.
    fn tried(source: &str, named: Vec<(String, String)>) -> Result<Self, TextError> {
        let reads_effort = source.contains("reasoning_effort");
        let mut this = Self { template: compile(source)?, named, is_costly: false, reads_effort };
        let messages = json!([{"role": "user", "content": ""}]);
        let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
        this.is_costly =
            matches!(this.render_within(&input, Effort::Brief), Err(TextError::NotBrief));
        Ok(this)
    }

    /// Whether no chat, however short, is rendered briefly.
    pub fn is_costly(&self) -> bool {
        self.is_costly
    }

    /// Renders the messages with as much work as a template may do.
    ///
    /// # Errors
    /// `TemplateRefused` with the template's own message, `TemplateFailed` if these messages do not
    /// fit the template, `TemplateLimit`, and `Input` for a field that cannot be honoured.
    pub fn render(&self, input: &ChatInput) -> Result<RenderedPrompt, TextError> {
        self.render_within(input, Effort::Full)
    }

    /// Renders the messages with no more work than `effort` allows.
    ///
    /// # Errors
    /// As `render`; `NotBrief` in place of `TemplateLimit` if less effort than `Full` is allowed.
    pub fn render_within(
        &self,
        input: &ChatInput,
        effort: Effort,
    ) -> Result<RenderedPrompt, TextError> {
        let is_brief = effort == Effort::Brief;
        if is_brief && self.is_costly {
            return Err(TextError::NotBrief);
        }
        let context = input.context(&self.named)?;
        let strftime = |format: &str| clock::strftime(input.now, format);
        let rendered = match self.template.render(&context, effort, &strftime) {
            Err(RenderError::Limit { .. }) if is_brief => return Err(TextError::NotBrief),
            rendered => rendered.map_err(failure)?,
        };
        let size = rendered.text.len();
        if is_brief && size > MAX_BRIEF_BYTES {
            return Err(TextError::NotBrief);
        }
        let most = MAX_GROWTH * context.size() + MAX_BYTES_OF_ITS_OWN;
        if size > most {
            return Err(TextError::TemplateLimit {
                what: "bytes of text for these messages",
                limit: most as u64,
            });
        }
        let end = input.end_of_continued_message(&rendered.text)?;
        let pieces = rendered.pieces().map(|(piece, source)| (piece.len(), source)).collect();
        let mut prompt = RenderedPrompt::mixed(rendered.text, pieces);
        if let Some(end) = end {
            prompt.truncate(end);
        }
        Ok(prompt)
    }
}

/// Renders any template with given variables: for tools that show what a template does. `strftime_now`
/// returns the beginning of 1970.
///
/// # Errors
/// As `ChatTemplate::new` and `ChatTemplate::render`.
pub fn render_template(
    source: &str,
    variables: Map<String, Value>,
    effort: Effort,
) -> Result<String, TextError> {
    let template = compile(source)?;
    let mut context = Context::default();
    for (name, value) in variables {
        context.set(&name, value, Source::Request).map_err(failure)?;
    }
    let rendered = template.render(&context, effort, &|format| clock::strftime(0, format));
    Ok(rendered.map_err(failure)?.text)
}

fn compile(source: &str) -> Result<Template, TextError> {
    Template::new(source).map_err(|error| TextError::load("chat template", error.to_string()))
}

/// The error that a failed rendering becomes.
fn failure(error: RenderError) -> TextError {
    match error {
        RenderError::Raised(message) => TextError::TemplateRefused(bounded(message)),
        RenderError::Limit { limit } => TextError::TemplateLimit { what: "units of work", limit },
        RenderError::Failed { .. } => TextError::TemplateFailed(error.to_string()),
    }
}

/// A prompt that becomes tokens within a few milliseconds.
const MAX_BRIEF_BYTES: usize = 64 << 10;
/// A prompt becomes tokens in a time and memory that grow with it. So it may be some times as long as what
/// it is made from, and some text of the template's own; published templates reach a fraction of both.
const MAX_GROWTH: usize = 4;
const MAX_BYTES_OF_ITS_OWN: usize = 256 << 10;
