//! [2] From the three forms of a prompt to token ids. Caller's thread, GIL released.

use std::time::{SystemTime, UNIX_EPOCH};

use ingle_core::TokenId;
use ingle_text::{ChatInput, ReasoningStart, ReasoningTags, RenderedPrompt, TextError};

use crate::error::{EngineError, text_refusal};
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
    pub(crate) reasoning: Option<(ReasoningTags, ReasoningStart)>,
}

/// Renders and tokenises one prompt; at least one id comes back.
pub(crate) fn encode_prompt(
    input: &PromptInput,
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
            let rendered = render(chat, tools.as_ref(), served)?;
            reasoning = reasoning_start(chat, &rendered, served);
            if chat.reasoning_off && matches!(reasoning, Some((_, ReasoningStart::Opened))) {
                let message = format!(
                    "reasoning_effort: the chat template of model {} always opens the reasoning; it cannot be \
                     turned off",
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

/// What a template makes of variables, a JSON object: for tools, without a model.
///
/// # Errors
/// `EngineError::Model` if the template cannot be compiled, `Refused` if it cannot be rendered.
pub fn render_template(source: &str, variables: &[u8]) -> Result<String, EngineError> {
    let variables = serde_json::from_slice(variables).map_err(|error| {
        EngineError::refused("variables", format!("not a JSON object: {error}"))
    })?;
    ingle_text::render_template(source, variables).map_err(|error| match error {
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

fn render(
    chat: &ChatPrompt,
    tools: Option<&Tools>,
    served: &Served,
) -> Result<RenderedPrompt, EngineError> {
    let Some(template) = &served.template else {
        return Err(EngineError::refused(
            "messages",
            format!(
                "model {} has no chat template; start with --chat-template FILE or use /v1/completions",
                served.name
            ),
        ));
    };
    if chat.add_generation_prompt && chat.continue_final_message {
        return Err(EngineError::refused(
            "continue_final_message",
            "continue_final_message: cannot be true along with add_generation_prompt",
        ));
    }
    let input = ChatInput {
        messages: tools
            .and_then(|tools| tools.messages_with_tools(&chat.messages))
            .unwrap_or_else(|| chat.messages.clone()),
        tools: tools.filter(|tools| tools.are_rendered()).map(|tools| tools.for_template.clone()),
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        kwargs: chat.template_kwargs.clone(),
        now: unix_seconds(),
    };
    template.render(&input).map_err(|error| text_refusal("messages", &error))
}

/// Whether the answer begins inside the model's reasoning, before it or after it.
fn reasoning_start(
    chat: &ChatPrompt,
    rendered: &RenderedPrompt,
    served: &Served,
) -> Option<(ReasoningTags, ReasoningStart)> {
    let tags = served.answer_format.reasoning.clone()?;
    let start = if chat.continue_final_message {
        // The answer goes on with a message: inside its reasoning only if that is still open.
        let message = chat.messages.as_array().and_then(|messages| messages.last());
        let text = message.and_then(|message| message["content"].as_str()).unwrap_or_default();
        match text.rfind(&tags.open) {
            Some(open) if text.rfind(&tags.close).is_none_or(|close| close < open) => {
                ReasoningStart::Opened
            }
            _ => ReasoningStart::Closed,
        }
    } else {
        tags.start_after(&rendered.text())
    };
    Some((tags, start))
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
