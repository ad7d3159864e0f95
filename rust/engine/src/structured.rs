//! [1] [2] Structured output and tools of a request: which grammar and bad words constrain the answer,
//! and how it is split. Caller's thread. What cannot be enforced is refused here by field name.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use ingle_core::TokenId;
use ingle_text::{
    AnswerRules, AnswerText, BadWords, CallPlace, Grammar, GrammarBudget, GrammarSource,
    GrammarSpec, Reasoned, ReasoningFormat, ReasoningStart, TextError, ToolFormat, ToolGrammar,
    ToolRules, ToolSpec,
};
use serde_json::{Value, json};

use crate::error::{EngineError, text_refusal};
use crate::served::Served;
use crate::wire::{ChatPrompt, GenerationRequest, GrammarInput, ToolChoice};

/// The tools that a chat may call.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    format: ToolFormat,
    specs: Vec<ToolSpec>,
    choice: ToolChoice,
    parallel: bool,
    /// As the template gets them.
    pub(crate) for_template: Value,
}

impl Tools {
    /// Checks the tools of a chat; `None` if there are none, or none may be called.
    pub(crate) fn new(chat: &ChatPrompt, served: &Served) -> Result<Option<Self>, EngineError> {
        let choice = chat.tool_choice.clone();
        if chat.tools.is_empty() {
            return match choice {
                None | Some(ToolChoice::Auto | ToolChoice::None) => Ok(None),
                Some(_) => Err(EngineError::refused("tool_choice", "tool_choice: needs tools")),
            };
        }
        let Some(format) = served.answer_format.tools else {
            return Err(EngineError::refused(
                "tools",
                format!(
                    "tools: the chat template of model {} does not support tools, or writes calls in a \
                     format that ingle does not know",
                    served.name
                ),
            ));
        };
        let mut specs: Vec<ToolSpec> = Vec::with_capacity(chat.tools.len());
        for (i, tool) in chat.tools.iter().enumerate() {
            if specs.iter().any(|spec| spec.name == tool.function.name) {
                let message = format!("tools[{i}].function.name: duplicate name");
                return Err(EngineError::refused("tools", message));
            }
            let spec = ToolSpec {
                name: tool.function.name.clone(),
                parameters: tool.function.parameters.clone(),
                strict: tool.function.strict,
            };
            spec.check().map_err(|error| {
                let message = format!("tools[{i}].function.parameters: {error}");
                EngineError::refused("tools", message)
            })?;
            specs.push(spec);
        }
        let choice = choice.unwrap_or(ToolChoice::Auto);
        if let ToolChoice::Function(name) = &choice
            && !specs.iter().any(|spec| spec.name == *name)
        {
            let message = format!("tool_choice: there is no tool named {name:?}");
            return Err(EngineError::refused("tool_choice", message));
        }
        if choice == ToolChoice::None {
            return Ok(None);
        }
        let for_template = chat.tools.iter().map(|tool| tool.for_template()).collect();
        Ok(Some(Self { format, specs, choice, parallel: chat.parallel_tool_calls, for_template }))
    }

    /// The messages as the template gets them, if it takes no tools.
    pub(crate) fn messages_with_tools(&self, messages: &Value) -> Option<Value> {
        self.format.messages_with_tools(messages, &self.for_template)
    }

    /// Whether the template itself takes the tools.
    pub(crate) fn are_rendered(&self) -> bool {
        self.format != ToolFormat::SmolLm2
    }

    fn rules(&self, or_json: bool) -> ToolRules {
        let place = match self.choice {
            ToolChoice::Required | ToolChoice::Function(_) => CallPlace::Alone,
            ToolChoice::Auto | ToolChoice::None if or_json => CallPlace::OrJson,
            ToolChoice::Auto | ToolChoice::None => CallPlace::InText,
        };
        let tools = self.specs.clone().into();
        ToolRules { format: self.format, tools, parallel: self.parallel, place }
    }

    /// The grammar that forces calls, or binds them where they are free; `None` if nothing is bound.
    /// `given`: the client's own, for the answer that the model may give in place of calls.
    fn grammar(
        &self,
        given: Option<&GrammarInput>,
        served: &Served,
    ) -> Result<Option<GrammarSource>, EngineError> {
        let answer = given.map(|given| self.answer_schema(given)).transpose()?;
        let (specs, required) = match &self.choice {
            ToolChoice::Required => (self.specs.clone(), true),
            ToolChoice::Function(name) => {
                let named = self.specs.iter().filter(|spec| spec.name == *name);
                (named.cloned().collect(), true)
            }
            ToolChoice::Auto if answer.is_some() || self.specs.iter().any(|spec| spec.strict) => {
                (self.specs.clone(), false)
            }
            ToolChoice::Auto | ToolChoice::None => return Ok(None),
        };
        // A named function is called once.
        let parallel = self.parallel && !matches!(self.choice, ToolChoice::Function(_));
        let tokenizer = &served.tokenizer;
        let mut grammar = ToolGrammar::new(self.format, specs, parallel, required, tokenizer);
        if let (Some(given), Some(schema)) = (given, answer) {
            grammar = grammar.or_answer(schema).map_err(|error| {
                EngineError::refused(given.field(), format!("{}: {error}", given.field()))
            })?;
        }
        Ok(Some(GrammarSource::Tools(grammar)))
    }

    /// The schema of answers beside calls that are the model's choice.
    fn answer_schema(&self, given: &GrammarInput) -> Result<Value, EngineError> {
        match (given, &self.choice) {
            (GrammarInput::JsonObject { .. }, ToolChoice::Auto) => Ok(json!({ "type": "object" })),
            (GrammarInput::JsonSchema { schema, .. }, ToolChoice::Auto) => Ok(schema.clone()),
            _ => {
                let message = format!(
                    "{}: cannot be combined with tools, except a JSON schema or JSON object with \
                     tool_choice auto",
                    given.field()
                );
                Err(EngineError::refused(given.field(), message))
            }
        }
    }
}

/// How the answers to one prompt are bound and split.
#[derive(Clone, Debug, Default)]
pub(crate) struct Structure {
    /// `None`: the text is content as it is.
    pub(crate) answer: Option<AnswerRules>,
    pub(crate) grammar: Option<Arc<Grammar>>,
    pub(crate) bad_words: Option<Arc<BadWords>>,
}

impl Structure {
    /// Of a chat whose prompt ends in reasoning or not.
    pub(crate) fn of_chat(
        request: &GenerationRequest,
        tools: Option<&Tools>,
        reasoning: Option<(ReasoningFormat, ReasoningStart)>,
        served: &Served,
    ) -> Result<Self, EngineError> {
        let given = request.grammar.as_ref();
        let calls = tools.map(|tools| tools.grammar(given, served)).transpose()?.flatten();
        let before = reasoning.as_ref().map(|(format, start)| (format.clone(), reasoned(*start)));
        let grammar = match (calls, given) {
            (Some(source), given) => {
                let spec = GrammarSpec { field: "tools", source, reasoning: before };
                let compiled = compile(request, &spec, served);
                Some(compiled.map_err(|error| blame(error, request, given, served))?)
            }
            (None, Some(given)) => Some(compile(request, &given.spec(before), served)?),
            (None, None) => None,
        };
        let tools = tools.map(|tools| tools.rules(given.is_some()));
        let is_split = reasoning.is_some() || tools.is_some();
        let answer = is_split.then_some(AnswerRules { reasoning, tools });
        Ok(Self { answer, grammar, bad_words: None })
    }

    /// Of a prompt that is plain text or ids.
    pub(crate) fn of_text(
        request: &GenerationRequest,
        served: &Served,
    ) -> Result<Self, EngineError> {
        let spec = request.grammar.as_ref().map(|given| given.spec(None));
        let grammar = spec.map(|spec| compile(request, &spec, served)).transpose()?;
        Ok(Self { answer: None, grammar, bad_words: None })
    }

    /// Adds the texts that must not stand in the answer, if the request has some. `end_token_ids`: what
    /// ends it.
    pub(crate) fn ban_words(
        &mut self,
        request: &GenerationRequest,
        end_token_ids: &[TokenId],
        served: &Served,
    ) -> Result<(), EngineError> {
        if request.bad_words.is_empty() {
            return Ok(());
        }
        let is_shown = request.include_stop_str_in_output;
        let ends = end_token_ids.iter().filter(|_| !is_shown);
        let reasoning = self.answer.as_ref().and_then(|answer| answer.reasoning.as_ref());
        let text = AnswerText {
            skip_special_tokens: request.skip_special_tokens,
            kept: self
                .answer
                .as_ref()
                .map_or_else(Vec::new, |_| served.answer_format.marker_ids(&served.tokenizer)),
            ends: ends.map(|id| id.0).collect(),
            reasoning: reasoning.map(|(_, start)| reasoned(*start)),
        };
        let compiled = served.bad_words.compile(&request.bad_words, text);
        let compiled = compiled.map_err(|error| text_refusal("bad_words", &error))?;
        self.bad_words = Some(Arc::new(compiled));
        Ok(())
    }
}

/// What stands before the part of an answer that is bound.
fn reasoned(start: ReasoningStart) -> Reasoned {
    match start {
        ReasoningStart::Opened => Reasoned::Opened,
        ReasoningStart::Unopened => Reasoned::Allowed,
        ReasoningStart::Closed => Reasoned::Closed,
    }
}

impl GrammarInput {
    fn spec(&self, reasoning: Option<(ReasoningFormat, Reasoned)>) -> GrammarSpec {
        let source = match self {
            Self::JsonObject { .. } => GrammarSource::JsonObject,
            Self::JsonSchema { schema, .. } => GrammarSource::JsonSchema(schema.clone()),
            Self::Regex { regex, .. } => GrammarSource::Regex(regex.clone()),
            Self::Choice { choices, .. } => GrammarSource::Choice(choices.clone()),
            Self::Lark { lark, .. } => GrammarSource::Lark(lark.clone()),
        };
        GrammarSpec { field: self.field(), source, reasoning }
    }
}

/// The error of a grammar of calls, or that of the client's own grammar in it if this is at fault.
fn blame(
    error: EngineError,
    request: &GenerationRequest,
    given: Option<&GrammarInput>,
    served: &Served,
) -> EngineError {
    match given {
        Some(given) if matches!(error, EngineError::Refused { .. }) => {
            compile(request, &given.spec(None), served).err().unwrap_or(error)
        }
        _ => error,
    }
}

fn compile(
    request: &GenerationRequest,
    spec: &GrammarSpec,
    served: &Served,
) -> Result<Arc<Grammar>, EngineError> {
    if request.ignore_eos {
        let message = "ignore_eos: not allowed with a grammar, which decides where the answer ends";
        return Err(EngineError::refused("ignore_eos", message));
    }
    if request.min_tokens > 0 {
        let message = "min_tokens: not allowed with a grammar, which decides where the answer ends";
        return Err(EngineError::refused("min_tokens", message));
    }
    if request.sampling.allowed_token_ids.is_some() {
        let message = format!("allowed_token_ids: cannot be combined with {}", spec.field);
        return Err(EngineError::refused("allowed_token_ids", message));
    }
    let tenant = served.salts.hash_one(&request.tenant);
    let budget = GrammarBudget { tenant, ..GrammarBudget::default() };
    let compiled = served.grammars.compile(spec, budget);
    compiled.map_err(|error| match error {
        TextError::CompilersBusy { .. } => {
            EngineError::Overloaded { message: error.to_string(), retry_after_s: 1, status: 503 }
        }
        error => text_refusal(spec.field, &error),
    })
}
