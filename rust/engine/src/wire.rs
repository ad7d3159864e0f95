//! [1] The JSON document of one client request, field by field. Unknown fields are refused. Any thread;
//! `prepare` checks the values.

use serde::Deserialize;

use crate::sampling_input::SamplingInput;

/// One client request: one or more prompts, `n` choices each.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationRequest {
    /// At least one.
    pub prompts: Vec<PromptInput>,
    /// Choices per prompt.
    #[serde(default = "one")]
    pub n: i64,
    /// Maximum number of tokens of a choice; absent: the rest of the context.
    #[serde(default)]
    pub max_tokens: Option<i64>,
    /// Minimum number of tokens.
    #[serde(default)]
    pub min_tokens: i64,
    /// How tokens are chosen.
    #[serde(default)]
    pub sampling: SamplingInput,
    /// Texts that end a choice.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Ids that end a choice.
    #[serde(default)]
    pub stop_token_ids: Vec<i64>,
    /// Continues past end-of-text.
    #[serde(default)]
    pub ignore_eos: bool,
    /// Keeps the stop string or the stop token's text in the answer.
    #[serde(default)]
    pub include_stop_str_in_output: bool,
    /// Leaves special tokens out of the text.
    #[serde(default = "yes")]
    pub skip_special_tokens: bool,
    /// Keep only so many of the prompt's last tokens; -1: what fits.
    #[serde(default)]
    pub truncate_prompt_tokens: Option<i64>,
    /// Lower runs first.
    #[serde(default)]
    pub priority: i64,
    /// Fairness and cache group.
    #[serde(default)]
    pub tenant: String,
    /// Separates cached prefixes further.
    #[serde(default)]
    pub cache_salt: Option<String>,
    /// The client's session: its requests go to one engine where they can.
    #[serde(default)]
    pub session: Option<String>,
    /// The W3C trace that the request belongs to, if it is sampled.
    #[serde(default)]
    pub trace: Option<TraceInput>,
    /// Texts that the answer must not contain.
    #[serde(default)]
    pub bad_words: Vec<String>,
    /// What the answers must match.
    #[serde(default)]
    pub grammar: Option<GrammarInput>,
    /// What comes back.
    pub output: OutputInput,
}

/// The trace that a request belongs to.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceInput {
    /// 32 lower-case hex digits; exemplars of the metrics show it.
    pub id: String,
    /// Report when the request passed its stages.
    #[serde(default)]
    pub report: bool,
}

/// Exactly one of `text`, `token_ids` and `chat`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptInput {
    /// Plain text. Special tokens in it count.
    #[serde(default)]
    pub text: Option<String>,
    /// Whether the tokenizer adds its start token to `text`.
    #[serde(default = "yes")]
    pub add_special_tokens: bool,
    /// Ids, used as they are.
    #[serde(default)]
    pub token_ids: Option<Vec<i64>>,
    /// Messages for the chat template.
    #[serde(default)]
    pub chat: Option<ChatPrompt>,
}

/// Input of the chat template.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatPrompt {
    /// A list of messages.
    pub messages: serde_json::Value,
    /// Functions that the model may call.
    #[serde(default)]
    pub tools: Vec<ToolInput>,
    /// Whether it must; absent: it may.
    #[serde(default)]
    pub tool_choice: Option<ToolChoice>,
    /// Whether one answer may have several calls.
    #[serde(default = "yes")]
    pub parallel_tool_calls: bool,
    /// End the prompt with the start of an assistant's turn.
    #[serde(default = "yes")]
    pub add_generation_prompt: bool,
    /// Leave the last message open.
    #[serde(default)]
    pub continue_final_message: bool,
    /// The model answers without reasoning; a template that opens it all the same is refused.
    #[serde(default)]
    pub reasoning_off: bool,
    /// How long the model reasons, in the words of its template, whose variable of this name it sets; a
    /// template without one is refused.
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    /// Which of the model's named templates; absent: `tool_use` with tools, else `default`.
    #[serde(default)]
    pub template_name: Option<String>,
    /// Further variables of the template.
    #[serde(default)]
    pub template_kwargs: serde_json::Map<String, serde_json::Value>,
}

/// A tool: OpenAI's form.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolInput {
    /// The function; there is no other kind of tool.
    pub function: FunctionInput,
}

/// A function that the model may call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionInput {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    #[serde(default)]
    pub description: Option<String>,
    /// JSON schema of its arguments.
    #[serde(default)]
    pub parameters: Option<serde_json::Value>,
    /// Arguments must fit the schema also where calls are the model's choice.
    #[serde(default)]
    pub strict: bool,
}

impl ToolInput {
    /// As templates know it, always in the same order.
    pub(crate) fn for_template(&self) -> serde_json::Value {
        let mut function = serde_json::Map::new();
        function.insert("name".into(), self.function.name.clone().into());
        if let Some(description) = &self.function.description {
            function.insert("description".into(), description.clone().into());
        }
        if let Some(parameters) = &self.function.parameters {
            function.insert("parameters".into(), parameters.clone());
        }
        serde_json::json!({ "type": "function", "function": function })
    }
}

/// Who chooses whether a tool is called.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoice {
    /// The model.
    Auto,
    /// Nobody: there are no calls.
    None,
    /// The client: there is a call.
    Required,
    /// The client: there is one call of this function.
    Function(String),
}

/// What the answers must match.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs, reason = "ingle_text::GrammarSource documents the forms")]
pub enum GrammarInput {
    JsonObject { field: GrammarField },
    JsonSchema { field: GrammarField, schema: serde_json::Value },
    Regex { field: GrammarField, regex: String },
    Choice { field: GrammarField, choices: Vec<String> },
    Lark { field: GrammarField, lark: String },
}

/// The client's field that a grammar came in; errors name it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are OpenAI's and vLLM's")]
pub enum GrammarField {
    ResponseFormat,
    GuidedJson,
    GuidedRegex,
    GuidedChoice,
    GuidedGrammar,
    Regex,
    StructuredOutputs,
}

impl GrammarInput {
    /// The client's name of the field.
    pub(crate) fn field(&self) -> &'static str {
        let (Self::JsonObject { field }
        | Self::JsonSchema { field, .. }
        | Self::Regex { field, .. }
        | Self::Choice { field, .. }
        | Self::Lark { field, .. }) = self;
        match field {
            GrammarField::ResponseFormat => "response_format",
            GrammarField::GuidedJson => "guided_json",
            GrammarField::GuidedRegex => "guided_regex",
            GrammarField::GuidedChoice => "guided_choice",
            GrammarField::GuidedGrammar => "guided_grammar",
            GrammarField::Regex => "regex",
            GrammarField::StructuredOutputs => "structured_outputs",
        }
    }
}

/// The form of the answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputInput {
    /// Completions, chat or plain deltas.
    pub format: OutputFormat,
    /// Events as they come, or one body.
    #[serde(default)]
    pub stream: bool,
    /// Put HTTP/1.1 chunk framing around events.
    #[serde(default)]
    pub chunked: bool,
    /// `id` of the answer.
    #[serde(default)]
    pub response_id: String,
    /// `model` of the answer; absent: the served name.
    #[serde(default)]
    pub model: Option<String>,
    /// `created` of the answer, unix seconds.
    #[serde(default)]
    pub created: u64,
    /// A usage event before `[DONE]`.
    #[serde(default)]
    pub include_usage: bool,
    /// Usage so far in every event.
    #[serde(default)]
    pub continuous_usage_stats: bool,
    /// Puts the prompt before the answer (completions).
    #[serde(default)]
    pub echo: bool,
    /// The number of each prompt's `n` choices to return: those with the highest mean log-prob per
    /// token, best first. Absent: all. Refused for streams, which begin before the best is known.
    #[serde(default)]
    pub keep: Option<i64>,
    /// Token ids beside the text.
    #[serde(default)]
    pub return_token_ids: bool,
    /// Which hidden state an embedding is; absent: the last token's.
    #[serde(default)]
    pub pooling: Option<PoolingInput>,
    /// Embeddings as base64 of little-endian f32 instead of numbers.
    #[serde(default)]
    pub base64: bool,
}

/// How the final hidden states of a prompt become one vector.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PoolingInput {
    /// Their mean.
    Mean,
    /// The last one.
    Last,
}

/// Who reads the answer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum OutputFormat {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
    /// The Python API.
    Delta,
    /// `/v1/embeddings`
    Embedding,
}

fn one() -> i64 {
    1
}

fn yes() -> bool {
    true
}
