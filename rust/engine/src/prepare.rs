//! [1] [2] From the request document to a submission that the engine thread only has to admit: every
//! value checked, every prompt tokenised, every state allocated. Caller's thread, no lock held.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use ingle_core::{
    AdmitError, Micros, NewRequest, RequestId, RequestKind, StopRules, TenantId, TokenId,
};
use ingle_text::{Detokenizer, StopMatcher};

use crate::choice::{Choice, ChoiceRules};
use crate::error::EngineError;
use crate::frame::{FrameBuilder, FrameFormat, FrameNames, UsagePolicy};
use crate::prompt::{EncodedPrompt, encode_prompt, text_refusal};
use crate::sampling::{sampling_params, token_ids};
use crate::served::Served;
use crate::stream::{Form, PromptState, Stream, Trailer};
use crate::wire::{GenerationRequest, OutputFormat, OutputInput};

/// A client request ready for the engine thread.
pub(crate) struct Submission {
    pub(crate) stream: Stream,
    /// One per choice, in order of index.
    pub(crate) requests: Vec<NewRequest>,
}

/// The core's id of a choice: unique, since keys are.
pub(crate) fn request_id(key: u64, choice: usize) -> RequestId {
    RequestId((key << CHOICE_BITS) | choice as u64)
}

/// The key and the choice that an id stands for.
pub(crate) fn split_id(id: RequestId) -> (u64, usize) {
    (id.0 >> CHOICE_BITS, (id.0 & (MAX_CHOICES as u64 - 1)) as usize)
}

/// Parses the document.
pub(crate) fn parse(document: &[u8]) -> Result<GenerationRequest, EngineError> {
    serde_json::from_slice(document).map_err(|error| EngineError::Refused {
        message: format!("request: {error}"),
        param: None,
        code: Some("invalid_request"),
        status: 400,
    })
}

/// How many choices the request has: `prompts.len() * n`.
pub(crate) fn num_choices(
    request: &GenerationRequest,
    served: &Served,
) -> Result<u32, EngineError> {
    if request.prompts.is_empty() {
        return Err(EngineError::refused(
            "prompt",
            "prompt is empty: at least one prompt is needed",
        ));
    }
    if !(1..=MAX_N).contains(&request.n) {
        let message = format!("n must be from 1 to {MAX_N}, not {}", request.n);
        return Err(EngineError::refused("n", message));
    }
    let choices = request.prompts.len().saturating_mul(request.n as usize);
    let most = (served.capacity as usize).min(MAX_CHOICES);
    if choices > most {
        let prompts = request.prompts.len();
        return Err(EngineError::refused(
            if request.n > 1 { "n" } else { "prompt" },
            format!(
                "{prompts} prompts times n = {} are {choices} choices, at most {most}",
                request.n
            ),
        ));
    }
    Ok(choices as u32)
}

/// Builds the submission of `request` under `key`.
pub(crate) fn prepare(
    request: &GenerationRequest,
    served: &Served,
    key: u64,
    tenant: TenantId,
    now: Micros,
) -> Result<Submission, EngineError> {
    let matcher = stop_matcher(request)?;
    let num_choices = num_choices(request, served)?;
    let priority = i32::try_from(request.priority).map_err(|_| {
        EngineError::refused(
            "priority",
            format!("priority {} does not fit 32 bits", request.priority),
        )
    })?;
    let stop_token_ids = token_ids("stop_token_ids", &request.stop_token_ids, served)?;
    let mut sampling = sampling_params(request, served)?;
    let wants_log_probs = sampling.log_probs;
    let prompt_only = request.max_tokens == Some(0);
    let min_tokens = min_tokens(request)?;
    if min_tokens > 0 {
        sampling.min_tokens = min_tokens;
        sampling.min_tokens_banned = banned_ids(request, served, &stop_token_ids);
    }
    let rules = Arc::new(ChoiceRules {
        stop: request.stop.clone(),
        stop_token_ids: stop_token_ids.iter().map(|id| id.0).collect(),
        include_stop: request.include_stop_str_in_output,
        skip_special_tokens: request.skip_special_tokens,
        min_tokens,
        keep_log_probs: wants_log_probs.is_some(),
        keep_token_ids: request.output.return_token_ids
            || request.output.format == OutputFormat::Delta,
        prompt_only,
    });
    let mut stream = Stream::new(
        key,
        form(&request.output, served, wants_log_probs.is_some()),
        request.n as u32,
        now,
    );
    stream.num_open = num_choices;
    let mut requests = Vec::with_capacity(num_choices as usize);
    let salt = served.salts.hash_one((&request.tenant, &request.cache_salt));
    for input in &request.prompts {
        let mut encoded = encode_prompt(input, served)?;
        truncate(&mut encoded, request, served)?;
        let max_tokens = max_tokens(&encoded, request, served)?;
        let ids: Arc<[TokenId]> = encoded.ids.into();
        let echo = echo(request, served, &ids, input.text.as_deref(), wants_log_probs.is_some());
        stream.usage.prompt_tokens += ids.len() as u64;
        let leader = request_id(key, requests.len());
        for choice in 0..request.n as u32 {
            let index = requests.len();
            sampling.choice_index = choice;
            requests.push(NewRequest {
                id: request_id(key, index),
                prompt: Arc::clone(&ids),
                sampling: Arc::new(sampling.clone()),
                stop: StopRules {
                    max_tokens,
                    eos_token_ids: Arc::clone(&served.eos_token_ids),
                    stop_token_ids: stop_token_ids.clone(),
                    ignore_eos: request.ignore_eos,
                    min_tokens,
                },
                kind: RequestKind::Generate,
                priority,
                tenant,
                cache_salt: salt,
                prompt_log_probs: if choice == 0 && request.output.echo {
                    wants_log_probs
                } else {
                    None
                },
                leader: (choice > 0).then_some(leader),
                late_sampled: false,
            });
            let rules = Arc::clone(&rules);
            let tokenizer = &served.tokenizer;
            let choice = Choice::new(index as u32, rules, matcher.clone(), tokenizer, &echo.text);
            stream.choices.push(choice);
        }
        stream.prompts.push(PromptState { ids, offsets: echo.offsets, num_seen: 0 });
    }
    Ok(Submission { stream, requests })
}

/// Finds the request's stop strings; `None` if it has none.
fn stop_matcher(request: &GenerationRequest) -> Result<Option<StopMatcher>, EngineError> {
    if request.output.echo && request.output.format == OutputFormat::Chat {
        return Err(EngineError::refused("echo", "echo works on completions only"));
    }
    if request.stop.len() > MAX_STOPS {
        let message = format!("stop: {} strings, at most {MAX_STOPS}", request.stop.len());
        return Err(EngineError::refused("stop", message));
    }
    if let Some(long) = request.stop.iter().find(|stop| stop.len() > MAX_STOP_BYTES) {
        let message = format!("stop: a string of {} bytes, at most {MAX_STOP_BYTES}", long.len());
        return Err(EngineError::refused("stop", message));
    }
    if request.stop.is_empty() {
        return Ok(None);
    }
    let matcher = StopMatcher::new(&request.stop, request.include_stop_str_in_output);
    matcher.map(Some).map_err(|error| text_refusal("stop", &error))
}

fn min_tokens(request: &GenerationRequest) -> Result<u32, EngineError> {
    // A negative max_tokens is refused under its own name.
    let most = request.max_tokens.filter(|&max| max >= 0).unwrap_or(i64::from(u32::MAX));
    match u32::try_from(request.min_tokens) {
        Ok(min) if i64::from(min) <= most => Ok(min),
        _ => Err(EngineError::refused(
            "min_tokens",
            format!("min_tokens must be from 0 to max_tokens, not {}", request.min_tokens),
        )),
    }
}

/// Ids that `min_tokens` holds back.
fn banned_ids(request: &GenerationRequest, served: &Served, stop: &[TokenId]) -> Vec<TokenId> {
    let eos: &[TokenId] = if request.ignore_eos { &[] } else { &served.eos_token_ids };
    let mut banned: Vec<TokenId> = eos.iter().chain(stop).copied().collect();
    banned.sort_unstable();
    banned.dedup();
    banned
}

/// Keeps the last tokens only, if the client asked for it.
fn truncate(
    encoded: &mut EncodedPrompt,
    request: &GenerationRequest,
    served: &Served,
) -> Result<(), EngineError> {
    let keep = match request.truncate_prompt_tokens {
        None => return Ok(()),
        // What fits beside the answer, or beside one token of it.
        Some(-1) => i64::from(served.max_model_len) - request.max_tokens.unwrap_or(1).max(1),
        Some(keep) => keep,
    };
    if keep < 1 {
        return Err(EngineError::refused(
            "truncate_prompt_tokens",
            format!("truncate_prompt_tokens leaves {keep} tokens; it must be -1 or at least 1"),
        ));
    }
    let surplus = encoded.ids.len().saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX));
    encoded.ids.drain(..surplus);
    Ok(())
}

/// Tokens to generate, checked against context and KV pool; 1 in place of 0, and then dropped.
fn max_tokens(
    encoded: &EncodedPrompt,
    request: &GenerationRequest,
    served: &Served,
) -> Result<u32, EngineError> {
    let len = encoded.ids.len();
    let room = (served.max_model_len as usize).saturating_sub(len);
    if room == 0 {
        return Err(EngineError::too_long(
            encoded.param,
            format!(
                "This model's maximum context length is {} tokens, and at least one must be left for \
                 the answer, but {} has {len} tokens",
                served.max_model_len, encoded.param
            ),
        ));
    }
    let asked = match request.max_tokens {
        None => room as u32,
        Some(0) => 1,
        Some(asked) if asked < 0 => {
            let message = format!("max_tokens must be at least 0, not {asked}");
            return Err(EngineError::refused("max_tokens", message));
        }
        Some(asked) => u32::try_from(asked).unwrap_or(u32::MAX),
    };
    let result = served.limits.check(len, asked);
    // Without max_tokens the answer takes what the pool has, as it takes what the context has.
    if let (Err(AdmitError::NeverFits { num_blocks, block_size, .. }), None) =
        (&result, request.max_tokens)
    {
        let fits = (*num_blocks as usize * *block_size as usize + 1).saturating_sub(len);
        if fits > 0 {
            return Ok(fits as u32);
        }
    }
    match result {
        Ok(()) => Ok(asked),
        Err(AdmitError::TooLong { .. }) => Err(EngineError::too_long(
            "max_tokens",
            format!(
                "This model's maximum context length is {} tokens, but {} tokens were requested ({len} \
                 in {}, {asked} for the answer)",
                served.max_model_len,
                len + asked as usize,
                encoded.param
            ),
        )),
        Err(error) => Err(EngineError::too_long(encoded.param, error.to_string())),
    }
}

#[derive(Default)]
struct Echo {
    text: String,
    offsets: Vec<u32>,
}

/// The prompt's text in front of the answer, and where each of its tokens starts.
fn echo(
    request: &GenerationRequest,
    served: &Served,
    ids: &[TokenId],
    text: Option<&str>,
    with_offsets: bool,
) -> Echo {
    if !request.output.echo {
        return Echo::default();
    }
    let tokenizer = &served.tokenizer;
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), request.skip_special_tokens);
    let mut decoded = String::new();
    let mut offsets = Vec::with_capacity(if with_offsets { ids.len() } else { 0 });
    let mut num_chars = 0;
    let mut counted = 0;
    for id in ids {
        if with_offsets {
            num_chars += decoded[counted..].chars().count() as u32;
            counted = decoded.len();
            offsets.push(num_chars);
        }
        detokenizer.push(id.0, &mut decoded);
    }
    detokenizer.finish(&mut decoded);
    // The client's own text where nothing was cut off; tokenizers may have normalised it.
    let whole = request.truncate_prompt_tokens.is_none();
    let text = match text {
        Some(text) if whole => text.to_owned(),
        _ => decoded,
    };
    Echo { text, offsets }
}

fn form(output: &OutputInput, served: &Served, log_probs: bool) -> Form {
    let format = match output.format {
        OutputFormat::Delta => return Form::Deltas { log_probs },
        OutputFormat::Completion => FrameFormat::Completion,
        OutputFormat::Chat => FrameFormat::Chat,
    };
    let usage = match (output.continuous_usage_stats, output.include_usage) {
        (true, _) => UsagePolicy::Continuous,
        (false, true) => UsagePolicy::AtEnd,
        (false, false) => UsagePolicy::Never,
    };
    let names = FrameNames {
        id: &output.response_id,
        model: output.model.as_deref().unwrap_or(&served.name),
        created: output.created,
    };
    let builder = FrameBuilder::new(format, output.stream, output.chunked, usage, names);
    let trailer = Trailer {
        usage_event: output.include_usage,
        log_probs,
        token_ids: output.return_token_ids,
    };
    if output.stream { Form::Events(builder, trailer) } else { Form::Body(builder, trailer) }
}

const CHOICE_BITS: u32 = 12;
/// Choices of one client request.
const MAX_CHOICES: usize = 1 << CHOICE_BITS;
/// OpenAI's limit.
const MAX_N: i64 = 128;
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 1024;
