//! [2] Renders chat messages with the model's Jinja template, as Hugging Face transformers does.
//! Any thread; worker pool for long chats. The template comes with the model and the messages with
//! the request: neither is trusted. Work and output are bounded, nothing is loaded or executed.

mod clock;
mod environment;
mod input;
mod json;
mod provenance;
mod source;

use minijinja::Environment;
use serde_json::Value;

use crate::{RenderedPrompt, TextError, Tokenizer};
pub use input::ChatInput;
use provenance::Guard;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    named: Vec<(String, String)>,
    guard: Guard,
}

impl ChatTemplate {
    /// Compiles a template that no tokenizer is known for. Special tokens in messages are kept from
    /// counting if they begin with one of `<`, `[`, or like `bos_token` or `eos_token`;
    /// `Tokenizer::encode_rendered` refuses the prompt if the model has others.
    ///
    /// # Errors
    /// `TextError::Load` with the line of a syntax error.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TextError> {
        let named = [("bos_token", bos_token), ("eos_token", eos_token)];
        let named = named.map(|(key, token)| (key.to_string(), token.to_string())).to_vec();
        let special = [bos_token.to_string(), eos_token.to_string()];
        let guard = Guard::without_tokenizer(source, &special);
        Ok(Self { environment: environment::compile(source)?, named, guard })
    }

    /// Compiles a template for a model whose special tokens are known: the usual way.
    ///
    /// # Errors
    /// `TextError::Load` with the line of a syntax error.
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let guard = Guard::new(source, tokenizer.special_tokens());
        let named = tokenizer.named_tokens().to_vec();
        Ok(Self { environment: environment::compile(source)?, named, guard })
    }

    /// The source in a `chat_template` field: a string, or a list of named templates, of which
    /// `tool_use` is for requests with tools and `default` for the others.
    ///
    /// # Errors
    /// `TextError::Load` if there is neither a string nor a template of that name.
    pub fn source_from_config(field: &Value, with_tools: bool) -> Result<&str, TextError> {
        let broken = |message: &str| TextError::load("chat_template", message);
        if let Some(source) = field.as_str() {
            return Ok(source);
        }
        let list = field.as_array().ok_or_else(|| broken("neither a string nor a list"))?;
        let named = |name: &str| {
            list.iter().find(|item| item["name"] == name).and_then(|item| item["template"].as_str())
        };
        let tool_use = named("tool_use").filter(|_| with_tools);
        tool_use.or_else(|| named("default")).ok_or_else(|| broken("no template named default"))
    }

    /// Renders the messages.
    ///
    /// # Errors
    /// `TemplateRefused` with the template's own message, `TemplateFailed` if these messages do not
    /// fit the template, `TemplateLimit`, and `Input` for a field that cannot be honoured.
    pub fn render(&self, input: &ChatInput) -> Result<RenderedPrompt, TextError> {
        let mut context = input.context(&self.named)?;
        let marks = self.guard.mark(&mut context, &self.named);
        context.insert(environment::MARKS.into(), marks.chars().into());
        let rendered = environment::render(&self.environment, context, input.now)?;
        let (text, foreign) = marks.unmark(rendered);
        let end = input.end_of_continued_message(&text)?;
        let (mut text, mut foreign) = (text, foreign);
        if let Some(end) = end {
            text.truncate(end);
            foreign.retain(|offset| *offset < end);
        }
        Ok(RenderedPrompt::guarded(text, foreign, self.guard.chars().to_vec()))
    }
}
