//! [2] From the three forms of a prompt to token ids. Caller's thread, GIL released.

use std::time::{SystemTime, UNIX_EPOCH};

use ingle_core::TokenId;
use ingle_text::{
    ChatInput, ChatTemplate, Effort, ReasoningFormat, ReasoningStart, RenderedPrompt, TextError,
};

use crate::error::{EngineError, text_refusal};
use crate::guard::fault_point;
use crate::sampling::token_ids;
use crate::served::Served;
use crate::structured::Tools;
use crate::wire::{ChatPrompt, PromptInput};

/// The ids of one prompt; `param` names where it came from.
pub(crate) struct EncodedPrompt {
    pub(crate) ids: Vec<TokenId>,
    pub(crate) param: &'static str,
    /// Tools that the answers may call.
    pub(crate) tools: Option<Tools>,
    /// Where the prompt of a chat leaves a reasoning model.
    pub(crate) reasoning: Option<(ReasoningFormat, ReasoningStart)>,
}

/// Renders and tokenises one prompt; at least one id comes back.
pub(crate) fn encode_prompt(
    input: &PromptInput,
    effort: Effort,
    served: &Served,
) -> Result<EncodedPrompt, EngineError> {
    let mut tools = None;
    let mut reasoning = None;
    let (ids, param) = match (&input.text, &input.token_ids, &input.chat) {
        (Some(text), None, None) => {
            check_length("prompt", text, served)?;
            (encode_text(text, input.add_special_tokens, served)?, "prompt")
        }
        (None, Some(ids), None) => (token_ids("prompt", ids, served)?, "prompt"),
        (None, None, Some(chat)) => {
            tools = Tools::new(chat, served)?;
            let rendered = render(chat, tools.as_ref(), effort, served)?;
            reasoning = reasoning_start(chat, &rendered, served);
            let goes_on = matches!(
                reasoning,
                Some(
                    (_, ReasoningStart::Opened)
                        | (ReasoningFormat::Harmony, ReasoningStart::Unopened)
                )
            );
            if chat.reasoning_off && goes_on {
                let message = format!(
                    "reasoning_effort: none is not possible: model {} always reasons before it answers",
                    served.name
                );
                return Err(EngineError::refused("reasoning_effort", message));
            }
            let ids = served.tokenizer.encode_rendered(&rendered);
            let ids = ids.map_err(|error| text_refusal("messages", &error))?;
            (ids.into_iter().map(TokenId).collect(), "messages")
        }
        _ => {
            return Err(EngineError::refused(
                "prompt",
                "a prompt is exactly one of text, token_ids and chat",
            ));
        }
    };
    if ids.is_empty() {
        return Err(EngineError::refused(param, format!("{param}: must not be empty")));
    }
    Ok(EncodedPrompt { ids, param, tools, reasoning })
}

/// What a template makes of variables, a JSON object: for tools, without a model. `effort` bounds the work.
///
/// # Errors
/// `EngineError::Model` if the template cannot be compiled, `Refused` if it cannot be rendered.
pub fn render_template(
    source: &str,
    variables: &[u8],
    effort: Effort,
) -> Result<String, EngineError> {
    let variables = serde_json::from_slice(variables).map_err(|error| {
        EngineError::refused("variables", format!("not a JSON object: {error}"))
    })?;
    ingle_text::render_template(source, variables, effort).map_err(|error| match error {
        TextError::Load { .. } => EngineError::Model(error.to_string()),
        error => text_refusal("variables", &error),
    })
}

fn encode_text(
    text: &str,
    add_special_tokens: bool,
    served: &Served,
) -> Result<Vec<TokenId>, EngineError> {
    let ids = served
        .tokenizer
        .encode_prompt(text, add_special_tokens)
        .map_err(|error| text_refusal("prompt", &error))?;
    if ids.is_empty() && add_special_tokens {
        // An empty text starts from the start token, if the model has one.
        return Ok(served.tokenizer.bos_token_id().map(TokenId).into_iter().collect());
    }
    Ok(ids.into_iter().map(TokenId).collect())
}

/// The template that the request names; without a name `tool_use` if it gets tools and the model has it,
/// else `default`.
fn template<'s>(
    chat: &ChatPrompt,
    gets_tools: bool,
    served: &'s Served,
) -> Result<&'s ChatTemplate, EngineError> {
    let templates = &served.templates;
    if templates.is_empty() {
        return Err(EngineError::refused(
            "messages",
            format!(
                "model {} has no chat template; start with --chat-template FILE or use /v1/completions",
                served.name
            ),
        ));
    }
    let named = chat.template_name.as_deref();
    let found = match named {
        Some(name) => templates.get(name),
        None => {
            let for_tools = templates.get("tool_use").filter(|_| gets_tools);
            for_tools.or_else(|| templates.get("default"))
        }
    };
    found.ok_or_else(|| {
        let known: Vec<&str> = templates.keys().map(String::as_str).collect();
        let known = known.join(", ");
        let message = match named {
            Some(name) => {
                let name: String = name.chars().take(80).collect();
                format!(
                    "chat_template_name: no template is called {name:?}; this model has: {known}"
                )
            }
            None => {
                format!("chat_template_name: is required, since no template is called default; this model has: {known}")
            }
        };
        EngineError::refused("chat_template_name", message)
    })
}

fn render(
    chat: &ChatPrompt,
    tools: Option<&Tools>,
    effort: Effort,
    served: &Served,
) -> Result<RenderedPrompt, EngineError> {
    let tools_shown = tools.filter(|tools| tools.are_rendered());
    let template = template(chat, tools_shown.is_some(), served)?;
    let mut kwargs = chat.template_kwargs.clone();
    if let Some(wanted) = &chat.reasoning_effort {
        if !template.reads_effort() {
            let message = format!(
                "reasoning_effort: must be none or absent, since the chat template of model {} has no \
                 such variable",
                served.name
            );
            return Err(EngineError::refused("reasoning_effort", message));
        }
        kwargs.insert("reasoning_effort".to_owned(), wanted.clone().into());
    }
    if chat.add_generation_prompt && chat.continue_final_message {
        return Err(EngineError::refused(
            "continue_final_message",
            "continue_final_message: cannot be true along with add_generation_prompt",
        ));
    }
    let messages = match tools.and_then(|tools| tools.messages_with_tools(&chat.messages)) {
        Some(messages) => messages,
        None => {
            let format = served.answer_format.tools;
            let all = format.and_then(|format| format.messages_with_all_calls(&chat.messages));
            all.unwrap_or_else(|| chat.messages.clone())
        }
    };
    let input = ChatInput {
        messages,
        tools: tools_shown.map(|tools| tools.for_template.clone()),
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        kwargs,
        now: unix_seconds(),
    };
    fault_point("template");
    template.render_within(&input, effort).map_err(|error| text_refusal("messages", &error))
}

/// Whether the answer begins inside the model's reasoning, before it or after it.
fn reasoning_start(
    chat: &ChatPrompt,
    rendered: &RenderedPrompt,
    served: &Served,
) -> Option<(ReasoningFormat, ReasoningStart)> {
    let format = served.answer_format.reasoning.clone()?;
    let start = if chat.continue_final_message {
        // The answer continues a message. It starts inside the reasoning only if that is still open.
        let message = chat.messages.as_array().and_then(|messages| messages.last());
        let text = message.and_then(|message| message["content"].as_str()).unwrap_or_default();
        format.start_within(text)
    } else {
        format.start_after(&rendered.text())
    };
    Some((format, start))
}

/// Text that cannot fit whatever its tokens are is not tokenised at all.
fn check_length(param: &str, text: &str, served: &Served) -> Result<(), EngineError> {
    let most = (served.max_model_len as usize).saturating_mul(MAX_BYTES_A_TOKEN);
    if text.len() <= most {
        return Ok(());
    }
    Err(EngineError::too_long(
        param,
        format!(
            "{param} has {} bytes; the context of {} tokens cannot hold more than {most}",
            text.len(),
            served.max_model_len
        ),
    ))
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// No vocabulary in use has a longer token of ordinary text (runs of spaces reach 128).
const MAX_BYTES_A_TOKEN: usize = 256;
