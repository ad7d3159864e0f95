//! [2] Renders chat messages with the model's Jinja template, as Hugging Face transformers does.
//! Any thread; long chats use the submit threads. The template comes with the model and the
//! messages with the request; neither is trusted. Work and output are bounded, and nothing is
//! loaded or executed.

mod clock;
mod input;

use ingle_jinja::{Context, RenderError, Source, Template};
use serde_json::{Map, Value};

use crate::error::bounded;
use crate::{RenderedPrompt, TextError, Tokenizer};
pub use input::ChatInput;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    named: Vec<(String, String)>,
}

impl ChatTemplate {
    /// Compiles a template for a model of which only two tokens are known.
    ///
    /// # Errors
    /// `TextError::Load` with the line of a syntax error.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TextError> {
        let named = [("bos_token", bos_token), ("eos_token", eos_token)];
        let named = named.map(|(key, token)| (key.to_string(), token.to_string())).to_vec();
        Ok(Self { template: compile(source)?, named })
    }

    /// Compiles a template for a tokenizer, whose named tokens it may use: the usual way.
    ///
    /// # Errors
    /// `TextError::Load` with the line of a syntax error.
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let named = tokenizer.named_tokens().to_vec();
        Ok(Self { template: compile(source)?, named })
    }

    /// Renders the messages.
    ///
    /// # Errors
    /// `TemplateRefused` with the template's own message, `TemplateFailed` if these messages do not
    /// fit the template, `TemplateLimit`, and `Input` for a field that cannot be honoured.
    pub fn render(&self, input: &ChatInput) -> Result<RenderedPrompt, TextError> {
        let context = input.context(&self.named)?;
        let strftime = |format: &str| clock::strftime(input.now, format);
        let rendered = self.template.render(&context, &strftime).map_err(failure)?;
        let end = input.end_of_continued_message(&rendered.text)?;
        let pieces = rendered.pieces().map(|(piece, source)| (piece.len(), source)).collect();
        let mut prompt = RenderedPrompt::mixed(rendered.text, pieces);
        if let Some(end) = end {
            prompt.truncate(end);
        }
        Ok(prompt)
    }
}

/// Renders any template with variables from nobody in particular: for tools that show what a template
/// does. `strftime_now` tells the beginning of 1970.
///
/// # Errors
/// As `ChatTemplate::new` and `ChatTemplate::render`.
pub fn render_template(source: &str, variables: Map<String, Value>) -> Result<String, TextError> {
    let template = compile(source)?;
    let mut context = Context::default();
    for (name, value) in variables {
        context.set(&name, value, Source::Request).map_err(failure)?;
    }
    let rendered = template.render(&context, &|format| clock::strftime(0, format));
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

/// The origin of a message: an earlier answer of the model, or the request.
fn source_of(message: &Value) -> Source {
    if message["role"] == "assistant" { Source::Answer } else { Source::Request }
}
