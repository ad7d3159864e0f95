//! The variables that a chat request gives to the template, and the changes that Hugging Face makes
//! to them first.

use ingle_jinja::{Context, RenderError, Source};
use serde_json::{Map, Value};

use crate::TextError;

/// The input of one rendering.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// The messages, a list of objects.
    pub messages: Value,
    /// The tools, a list of objects.
    pub tools: Option<Value>,
    /// Whether the text ends with the beginning of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the text ends inside the last message, so that the model goes on with it.
    pub continue_final_message: bool,
    /// `chat_template_kwargs` of the request.
    pub kwargs: Map<String, Value>,
    /// The time for `strftime_now`, in seconds since 1970, UTC.
    pub now: i64,
}

impl ChatInput {
    /// Refuses values that are nested too deep for anything that walks through them.
    fn check_depth(&self) -> Result<(), TextError> {
        let named = [("messages", &self.messages)].into_iter();
        let named = named.chain(self.tools.iter().map(|tools| ("tools", tools)));
        let named = named.chain(self.kwargs.values().map(|value| ("chat_template_kwargs", value)));
        for (field, value) in named {
            if !is_within(value, MAX_LEVELS) {
                let message = format!("nested deeper than {MAX_LEVELS}");
                return Err(TextError::input(field, message));
            }
        }
        Ok(())
    }

    /// The variables of the template.
    pub(crate) fn context(&self, named: &[(String, String)]) -> Result<Context, TextError> {
        if self.add_generation_prompt && self.continue_final_message {
            let message = "cannot be combined with add_generation_prompt";
            return Err(TextError::input("continue_final_message", message));
        }
        self.check_depth()?;
        let mut messages = self.messages.clone();
        let list = messages.as_array_mut().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| TextError::input("messages", "expected a non-empty list"))?;
        for message in list.iter_mut() {
            match message.as_object_mut() {
                Some(message) => alias_reasoning(message),
                None => return Err(TextError::input("messages", "expected a list of objects")),
            }
        }
        if self.continue_final_message
            && let Some(last) = list.last_mut()
        {
            let text = final_text_mut(last);
            text.ok_or_else(no_text_to_continue)?.push_str(CONTINUE_TAG);
        }
        let mut context = Context::default();
        for (key, token) in named {
            context.set(key, token.clone().into(), Source::Template).map_err(too_deep)?;
        }
        for (key, value) in &self.kwargs {
            let named = named.iter().any(|(name, _)| name == key);
            if named || RESERVED.contains(&key.as_str()) {
                let message = format!("{key:?} cannot be set here");
                return Err(TextError::input("chat_template_kwargs", message));
            }
            context.set(key, value.clone(), Source::Request).map_err(too_deep)?;
        }
        let from = |message: Value| {
            let source = source_of(&message);
            (message, source)
        };
        let list = std::mem::take(list).into_iter().map(from).collect();
        context.set_list("messages", list).map_err(too_deep)?;
        let tools = self.tools.clone().unwrap_or(Value::Null);
        context.set("tools", tools, Source::Request).map_err(too_deep)?;
        context.set("documents", Value::Null, Source::Request).map_err(too_deep)?;
        let add = self.add_generation_prompt.into();
        context.set("add_generation_prompt", add, Source::Template).map_err(too_deep)?;
        Ok(context)
    }

    /// Where the text of the continued message ends in the rendered text, once the tag is off.
    ///
    /// The message is rendered with a tag at its end, as transformers does: that works also when
    /// the same text stands elsewhere, and shows whether the template trims.
    pub(crate) fn end_of_continued_message(&self, text: &str) -> Result<Option<usize>, TextError> {
        if !self.continue_final_message {
            return Ok(None);
        }
        let last = self.messages.as_array().and_then(|list| list.last()).and_then(final_text);
        let last = last.ok_or_else(no_text_to_continue)?;
        let tag = text.rfind(CONTINUE_TAG.trim_end());
        match tag.filter(|_| text.contains(last.trim())) {
            None => Err(TextError::input(
                "continue_final_message",
                "the chat template does not render the final message as it is",
            )),
            Some(at) if text[at..].starts_with(CONTINUE_TAG) => Ok(Some(at)),
            // The template trims: the space before the tag would have gone as well.
            Some(at) => Ok(Some(text[..at].trim_end().len())),
        }
    }
}

/// `MAX_LEVELS` is below what the engine allows: this does not happen.
fn too_deep(error: RenderError) -> TextError {
    TextError::TemplateFailed(error.to_string())
}

/// Whether a value has at most `levels` levels of lists and objects.
fn is_within(value: &Value, levels: usize) -> bool {
    match (value, levels.checked_sub(1)) {
        (Value::Array(items), Some(left)) => items.iter().all(|item| is_within(item, left)),
        (Value::Object(map), Some(left)) => map.values().all(|item| is_within(item, left)),
        (Value::Array(_) | Value::Object(_), None) => false,
        _ => true,
    }
}

fn no_text_to_continue() -> TextError {
    TextError::input("continue_final_message", "the final message has no text to continue")
}

/// The text of a message that `continue_final_message` continues: its content, or the last text part.
fn final_text(message: &Value) -> Option<&str> {
    match &message["content"] {
        Value::String(text) => Some(text),
        Value::Array(parts) => parts.iter().rev().find_map(|part| part.get("text"))?.as_str(),
        _ => None,
    }
}

fn final_text_mut(message: &mut Value) -> Option<&mut String> {
    let text = match message.get_mut("content")? {
        Value::Array(parts) => parts.iter_mut().rev().find_map(|part| part.get_mut("text"))?,
        content => content,
    };
    match text {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// Gives a message's reasoning every name that templates read it by.
fn alias_reasoning(message: &mut Map<String, Value>) {
    let names = ["reasoning_content", "thinking", "reasoning"];
    let set = names.iter().find_map(|name| message.get(*name).filter(|value| !value.is_null()));
    if let Some(reasoning) = set.cloned() {
        if !message.contains_key("thinking") {
            message.insert("thinking".into(), reasoning.clone());
        }
        message.insert("reasoning_content".into(), reasoning);
    }
}

/// Put at the end of the message to continue. The trailing space is gone if the template trims.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Levels of lists and objects in one field; JSON of a request has at most 128.
const MAX_LEVELS: usize = 128;

/// Variables that belong to the request's own fields.
const RESERVED: [&str; 7] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "chat_template",
];

/// The origin of a message: an earlier answer of the model, or the request.
fn source_of(message: &Value) -> Source {
    if message["role"] == "assistant" { Source::Answer } else { Source::Request }
}
