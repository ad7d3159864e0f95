//! [1] [2] From the request document to a submission that the engine thread only has to admit: all
//! values checked, prompts tokenized, state allocated. Caller's thread, no lock held.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use ingle_core::{Micros, NewRequest, RequestKind, SamplingParams, StopRules, TenantId, TokenId};
use ingle_text::{BadWords, Effort, StopMatcher};

use crate::answer_room::MAX_ANSWER_BYTES;
use crate::choice::{Choice, ChoiceRules, TokenRules};
use crate::choice_mask::{ChoiceMask, MaskState};
use crate::echo::echo;
use crate::embedding::{Embeddings, pooling};
use crate::entry_budget::EntryBudget;
use crate::error::{EngineError, shortened, text_refusal};
use crate::frame::{FrameBuilder, FrameFormat, FrameNames, UsagePolicy};
use crate::guard::fault_point;
use crate::lengths::{max_tokens, min_tokens, truncate};
use crate::logprobs::LogEntry;
use crate::prompt::{EncodedPrompt, encode_prompt};
use crate::prompt_logs::PromptLogs;
use crate::prompt_state::PromptState;
use crate::request_limits::{MAX_N, MAX_STOP_CHARS, MAX_STOP_TOKEN_IDS, MAX_STOPS};
use crate::sampling::{sampling_params, token_ids};
use crate::served::Served;
use crate::stream::{Form, Stream, Trailer};
use crate::structured::Structure;
use crate::submission::{MAX_CHOICES, Submission, request_id};
use crate::trace::Trace;
use crate::wire::{GenerationRequest, OutputFormat, PromptInput};

/// Parses the document.
pub(crate) fn parse(document: &[u8]) -> Result<GenerationRequest, EngineError> {
    serde_json::from_slice(document).map_err(|error| EngineError::Refused {
        message: format!("request: {}", shortened(&error)),
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
        return Err(EngineError::refused("prompt", "prompt: an empty list holds no prompt"));
    }
    if !(1..=MAX_N).contains(&request.n) {
        let allowed = format!("a whole number from 1 to {MAX_N}");
        return Err(EngineError::not_allowed("n", allowed, request.n));
    }
    let choices = request.prompts.len().saturating_mul(request.n as usize);
    let most = (served.capacity as usize).min(MAX_CHOICES);
    if choices > most {
        let prompts = request.prompts.len();
        return Err(EngineError::refused(
            if request.n > 1 { "n" } else { "prompt" },
            format!(
                "{prompts} prompts with n = {} make {choices} choices; the maximum is {most}",
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
    effort: Effort,
    now: Micros,
) -> Result<Submission, EngineError> {
    let common = Common { effort, ..Common::new(request, served, tenant)? };
    let num_choices = num_choices(request, served)?;
    let form = form(request, served, common.wants_log_probs())?;
    let mut stream = Stream::new(key, form, request.n as u32, now);
    stream.num_open = num_choices;
    stream.trace = request.trace.as_ref().map(Trace::new).transpose()?.map(Box::new);
    let mut requests = Vec::with_capacity(num_choices as usize);
    let mut budget = EntryBudget::new(request, &common.sampling, common.prompt_logs);
    for (number, input) in request.prompts.iter().enumerate() {
        let added = common.add_prompt(input, &mut budget, &mut stream, &mut requests);
        added.map_err(|error| match request.prompts.len() {
            1 => error,
            _ => error.of_prompt(number),
        })?;
    }
    Ok(Submission { stream, requests })
}

/// What all choices of a client request share.
struct Common<'a> {
    request: &'a GenerationRequest,
    served: &'a Served,
    tenant: TenantId,
    /// How long the caller can wait.
    effort: Effort,
    priority: i32,
    /// Of choice 0.
    sampling: SamplingParams,
    end_token_ids: Arc<[TokenId]>,
    rules: Arc<ChoiceRules>,
    matcher: Option<StopMatcher>,
    prompt_logs: PromptLogs,
    cache_salt: u64,
    kind: RequestKind,
}

impl<'a> Common<'a> {
    fn new(
        request: &'a GenerationRequest,
        served: &'a Served,
        tenant: TenantId,
    ) -> Result<Self, EngineError> {
        let output = &request.output;
        if output.echo && output.format == OutputFormat::Chat {
            return Err(EngineError::refused("echo", "echo works on completions only"));
        }
        let kind = pooling(request, served)?.map_or(RequestKind::Generate, RequestKind::Embed);
        let matcher = stop_matcher(request)?;
        let priority = i32::try_from(request.priority).map_err(|_| {
            let allowed = format!("a whole number from {} to {}", i32::MIN, i32::MAX);
            EngineError::not_allowed("priority", allowed, request.priority)
        })?;
        let stop_token_ids = stop_token_ids(request, served)?;
        let end_token_ids = end_token_ids(request, served, &stop_token_ids);
        let mut sampling = sampling_params(request, served)?;
        if keep(request)?.is_some() {
            // Choices are ranked by their log-probs, even if the client does not get these.
            sampling.log_probs = sampling.log_probs.or(Some(0));
        }
        let prompt_logs = PromptLogs::new(request, &sampling)?;
        let min_tokens = min_tokens(request)?;
        if min_tokens > 0 {
            sampling.min_tokens = min_tokens;
            sampling.min_tokens_banned = banned_ids(&end_token_ids)?;
            check_some_left(&sampling)?;
        }
        let rules = Arc::new(ChoiceRules {
            stop: request.stop.clone(),
            stop_token_ids: stop_token_ids.iter().map(|id| id.0).collect(),
            eos_token_ids: Arc::clone(&served.eos_token_ids),
            skip_special_tokens: request.skip_special_tokens,
            per_token: TokenRules {
                min_tokens,
                include_stop: request.include_stop_str_in_output,
                keep_log_probs: sampling.log_probs.is_some(),
                keep_token_ids: output.return_token_ids || output.format == OutputFormat::Delta,
                prompt_only: request.max_tokens == Some(0),
            },
        });
        let cache_salt = served.salts.hash_one((&request.tenant, &request.cache_salt));
        if let Some(table) = &served.salt_table {
            table.note(cache_salt, request.cache_salt.as_deref());
        }
        Ok(Self {
            request,
            served,
            tenant,
            effort: Effort::Full,
            priority,
            sampling,
            end_token_ids,
            rules,
            matcher,
            prompt_logs,
            cache_salt,
            kind,
        })
    }

    fn wants_log_probs(&self) -> bool {
        self.request.sampling.logprobs.is_some()
    }

    /// Tokenises one prompt and adds its `n` choices.
    fn add_prompt(
        &self,
        input: &PromptInput,
        budget: &mut EntryBudget,
        stream: &mut Stream,
        requests: &mut Vec<NewRequest>,
    ) -> Result<(), EngineError> {
        let mut encoded = encode_prompt(input, self.effort, self.served)?;
        fault_point("tokenise");
        let structure = self.structure(input, &mut encoded)?;
        fault_point("grammar");
        truncate(&mut encoded, self.request, self.served)?;
        let max_tokens = max_tokens(&encoded, self.request, self.served)?;
        budget.take(encoded.ids.len(), max_tokens, stream.n)?;
        let ids: Arc<[TokenId]> = encoded.ids.into();
        let text = input.text.as_deref();
        let echo = echo(self.request, self.served, &ids, text, self.wants_log_probs());
        stream.held_bytes += echo.text.len() as u64 * u64::from(stream.n);
        if stream.held_bytes > MAX_ANSWER_BYTES {
            let problem = format!(
                "echo: the choices would begin with {} bytes of prompts, at most {MAX_ANSWER_BYTES} in one \
                 request; ask for fewer choices",
                stream.held_bytes
            );
            return Err(EngineError::refused("echo", problem));
        }
        stream.usage.prompt_tokens += ids.len() as u64;
        let first = requests.len();
        for choice in 0..stream.n {
            let index = requests.len();
            let mut request = self.core_request(stream.key, index, &ids, max_tokens);
            if choice > 0 {
                request.leader = Some(request_id(stream.key, first));
                let mut sampling = self.sampling.clone();
                sampling.choice_index = choice;
                request.sampling = Arc::new(sampling);
            } else {
                request.prompt_log_probs = self.prompt_logs.computed();
            }
            let constraint = MaskState::new(
                structure.grammar.as_ref().map(|grammar| grammar.start()),
                structure.bad_words.as_ref().map(BadWords::start),
                &request.sampling,
            );
            request.late_sampled = constraint.is_some();
            requests.push(request);
            let mut choice = Choice::new(
                index as u32,
                Arc::clone(&self.rules),
                self.matcher.clone(),
                &self.served.tokenizer,
                &echo.text,
            );
            if input.token_ids.is_some() {
                choice.follow(&ids, self.request.output.echo);
            }
            if self.prompt_logs.echoed.is_some() {
                choice.push_prompt(&[LogEntry::first(ids[0].0)]);
            }
            choice.constraint = constraint.map(ChoiceMask::new).map(Box::new);
            if let Some(rules) = &structure.answer {
                let seed = self.served.salts.hash_one((stream.key, index));
                let markers = self.served.answer_format.marker_ids(&self.served.tokenizer);
                choice.split(rules, seed, &markers);
            }
            stream.choices.push(choice);
        }
        stream.prompts.push(PromptState::new(ids, echo.offsets, self.prompt_logs));
        Ok(())
    }

    /// What binds and splits the answers to a prompt. Only chats are split.
    fn structure(
        &self,
        input: &PromptInput,
        encoded: &mut EncodedPrompt,
    ) -> Result<Structure, EngineError> {
        let (request, served) = (self.request, self.served);
        let mut structure = if input.chat.is_none() || request.output.format != OutputFormat::Chat {
            if encoded.tools.is_some() {
                return Err(EngineError::refused("tools", "tools: only allowed for chats"));
            }
            Structure::of_text(request, served)?
        } else {
            let reasoning = encoded.reasoning.take();
            Structure::of_chat(request, encoded.tools.as_ref(), reasoning, served)?
        };
        structure.ban_words(request, &self.end_token_ids, served)?;
        Ok(structure)
    }

    /// Choice 0 of a prompt.
    fn core_request(
        &self,
        key: u64,
        index: usize,
        ids: &Arc<[TokenId]>,
        max_tokens: u32,
    ) -> NewRequest {
        NewRequest {
            id: request_id(key, index),
            prompt: Arc::clone(ids),
            sampling: Arc::new(self.sampling.clone()),
            stop: StopRules {
                max_tokens,
                end_token_ids: Arc::clone(&self.end_token_ids),
                min_tokens: self.rules.per_token.min_tokens,
            },
            kind: self.kind.clone(),
            priority: self.priority,
            tenant: self.tenant,
            cache_salt: self.cache_salt,
            block_hashes: None,
            prompt_log_probs: None,
            leader: None,
            late_sampled: false,
        }
    }
}

/// Finds the request's stop strings; `None` if it has none.
fn stop_matcher(request: &GenerationRequest) -> Result<Option<StopMatcher>, EngineError> {
    if request.stop.len() > MAX_STOPS {
        let allowed = format!(
            "a string of 1 to {MAX_STOP_CHARS} characters or a list of at most {MAX_STOPS} items"
        );
        let given = format!("{} items", request.stop.len());
        return Err(EngineError::not_allowed("stop", allowed, given));
    }
    let lengths = request.stop.iter().map(|stop| stop.chars().count()).enumerate();
    if let Some((i, length)) = lengths.into_iter().find(|(_, length)| *length > MAX_STOP_CHARS) {
        let allowed = format!("a string of 1 to {MAX_STOP_CHARS} characters");
        let given = format!("{length} characters");
        return Err(EngineError::not_allowed(&format!("stop[{i}]"), allowed, given));
    }
    if request.stop.is_empty() {
        return Ok(None);
    }
    let matcher = StopMatcher::new(&request.stop, request.include_stop_str_in_output);
    matcher.map(Some).map_err(|error| text_refusal("stop", &error))
}

/// The client's ids that end a choice: looked through at every token.
fn stop_token_ids(
    request: &GenerationRequest,
    served: &Served,
) -> Result<Vec<TokenId>, EngineError> {
    let count = request.stop_token_ids.len();
    if count > MAX_STOP_TOKEN_IDS {
        let allowed = format!("a list of at most {MAX_STOP_TOKEN_IDS} items");
        return Err(EngineError::not_allowed("stop_token_ids", allowed, format!("{count} items")));
    }
    token_ids("stop_token_ids", &request.stop_token_ids, served)
}

/// All ids that end a choice: the client's, and the model's unless the client ignores them.
fn end_token_ids(
    request: &GenerationRequest,
    served: &Served,
    stop_token_ids: &[TokenId],
) -> Arc<[TokenId]> {
    if request.ignore_eos {
        stop_token_ids.into()
    } else if stop_token_ids.is_empty() {
        Arc::clone(&served.eos_token_ids)
    } else {
        served.eos_token_ids.iter().chain(stop_token_ids).copied().collect()
    }
}

/// Ids that `min_tokens` holds back.
fn banned_ids(end_token_ids: &[TokenId]) -> Result<Vec<TokenId>, EngineError> {
    let mut banned = end_token_ids.to_vec();
    banned.sort_unstable();
    banned.dedup();
    if banned.len() > MAX_BANNED {
        let count = banned.len();
        return Err(EngineError::refused(
            "stop_token_ids",
            format!("stop_token_ids: with min_tokens at most {MAX_BANNED} end tokens, not {count}"),
        ));
    }
    Ok(banned)
}

/// Under min_tokens, one of the allowed ids must not end the answer.
fn check_some_left(sampling: &SamplingParams) -> Result<(), EngineError> {
    let Some(allowed) = &sampling.allowed_token_ids else { return Ok(()) };
    if allowed.iter().all(|id| sampling.min_tokens_banned.contains(id)) {
        return Err(EngineError::refused(
            "allowed_token_ids",
            "allowed_token_ids: all of them end the answer, but min_tokens requires tokens before its end",
        ));
    }
    Ok(())
}

/// How many choices of each prompt are returned, if not all.
fn keep(request: &GenerationRequest) -> Result<Option<usize>, EngineError> {
    let Some(keep) = request.output.keep else { return Ok(None) };
    let is_body = !request.output.stream
        && matches!(request.output.format, OutputFormat::Completion | OutputFormat::Chat);
    if !is_body || !(1..=request.n).contains(&keep) {
        let allowed = format!("a whole number from n, {keep}, to {MAX_N}, and not in a stream");
        return Err(EngineError::not_allowed("best_of", allowed, request.n));
    }
    Ok(Some(keep as usize))
}

fn form(
    request: &GenerationRequest,
    served: &Served,
    log_probs: bool,
) -> Result<Form, EngineError> {
    let output = &request.output;
    let format = match output.format {
        OutputFormat::Delta => return Ok(Form::Deltas { log_probs }),
        OutputFormat::Embedding => {
            let model = output.model.as_deref().unwrap_or(&served.name);
            return Ok(Form::Embeddings(Embeddings::new(
                model,
                output.base64,
                served.embedding.normalise,
            )));
        }
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
        keep: keep(request)?,
    };
    Ok(if output.stream { Form::Events(builder, trailer) } else { Form::Body(builder, trailer) })
}

/// Ids that `min_tokens` can hold back; a slot of a device's sampler has no room for more.
pub(crate) const MAX_BANNED: usize = 128;
