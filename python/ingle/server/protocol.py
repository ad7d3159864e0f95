"""[1] The requests of the HTTP API as types, with the range of every field.

Any thread; plain data. `null` equals absent everywhere. Fields that the Python API also has are
defined in ingle/fields.py, the plain sampling fields in the core; the classes here say which
endpoint has which field. Unknown fields are handled in parse.py. Long parts stay JSON text
(raw.py); convert.py checks their limits and rules that involve several fields.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from ingle.fields import (
    BadWords,
    CacheSalt,
    Count,
    Echo,
    GuidedGrammar,
    GuidedRegex,
    IgnoreEos,
    IncludeStop,
    Logprobs,
    LongText,
    MinTokens,
    N,
    Priority,
    Seed,
    ShortText,
    SkipSpecialTokens,
    TruncatePromptTokens,
    about,
    plain_struct,
)
from ingle.server.protocol_fields import (
    AddGenerationPrompt,
    AddSpecialTokens,
    AllowedOrNull,
    BiasOrNull,
    Choices,
    ContinueFinalMessage,
    Ids,
    MaxTokens,
    ModelName,
    NoEffect,
    Object,
    ObjectOrNull,
    ParallelToolCalls,
    Prompt,
    ReasoningEffort,
    RequestId,
    SchemaOrText,
    StopIdsOrNull,
    StopOrNull,
    TemplateKwargs,
    TemplateName,
    Text,
    ToolName,
    TopLogprobs,
)
from ingle.server.protocol_messages import Messages
from ingle.server.raw import ABSENT


class StreamOptions(Struct):
    """Options of a stream; unknown keys have no effect, as clients send each other's."""

    include_usage: bool | None = None
    """Ends the stream with one event that has `usage` and no choices."""
    continuous_usage_stats: bool | None = None
    """Adds the usage so far to every event."""


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text: as if the field were absent."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """Any JSON object."""


class JsonSchema(Struct, kw_only=True, forbid_unknown_fields=True):
    """A named JSON schema."""

    name: ShortText | None = None
    """No effect."""
    description: LongText | None = None
    """No effect."""
    schema: Object
    strict: bool | None = None
    """No effect: answers always fit the schema."""


class JsonSchemaFormat(
    Struct, tag_field="type", tag="json_schema", kw_only=True, forbid_unknown_fields=True
):
    """JSON that fits a schema."""

    json_schema: JsonSchema


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's name for all of it; exactly one field."""

    json: SchemaOrText = ABSENT
    """A JSON schema."""
    json_object: bool | None = None
    regex: LongText | None = None
    choice: Choices = ABSENT
    grammar: LongText | None = None
    """In llguidance's dialect of Lark."""


class CommonFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What every request that computes something has; most of it has no effect."""

    model: ModelName | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    request_id: RequestId | None = None
    user: NoEffect = ABSENT
    safety_identifier: NoEffect = ABSENT
    prompt_cache_key: NoEffect = ABSENT
    prompt_cache_options: NoEffect = ABSENT
    prompt_cache_retention: NoEffect = ABSENT
    store: Annotated[Literal[False] | None, about("Answers are never stored.")] = None
    service_tier: Annotated[Literal["auto", "default"] | None, about("No effect.")] = None
    modalities: Annotated[list[Literal["text"]] | None, about("No effect.")] = None


if TYPE_CHECKING:

    class PlainFields(CommonFields, kw_only=True, forbid_unknown_fields=True):
        """CommonFields and the plain sampling fields; see `SAMPLING_FIELDS` of the core."""

        def __getattr__(self, name: str) -> Any: ...

else:
    PlainFields = plain_struct(
        "PlainFields",
        "CommonFields and the plain sampling fields; see `SAMPLING_FIELDS` of the core.",
        CommonFields,
        checked=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


class AnswerFields(PlainFields, kw_only=True, forbid_unknown_fields=True):
    """What every request has that asks for text."""

    stream: Annotated[bool | None, about("Streams the answer.", off=(False,))] = None
    seed: Seed | None = None
    min_tokens: MinTokens | None = None
    stop: StopOrNull = ABSENT
    ignore_eos: IgnoreEos | None = None


class SamplingFields(AnswerFields, kw_only=True, forbid_unknown_fields=True):
    """What completions and chat have in common."""

    stream_options: Annotated[StreamOptions | None, about("Extra contents of the stream.")] = None
    n: N | None = None
    logit_bias: BiasOrNull = ABSENT
    allowed_token_ids: AllowedOrNull = ABSENT
    stop_token_ids: StopIdsOrNull = ABSENT
    include_stop_str_in_output: IncludeStop | None = None
    skip_special_tokens: SkipSpecialTokens | None = None
    truncate_prompt_tokens: TruncatePromptTokens | None = None
    prompt_logprobs: Annotated[
        Logprobs | None,
        about(
            "vLLM's field: log-probs of the prompt's tokens, each with this many alternatives. Not "
            "in streams."
        ),
    ] = None
    return_token_ids: Annotated[
        bool | None, about("Adds token ids to the response.", off=(False,))
    ] = None
    response_format: Annotated[
        TextFormat | JsonObjectFormat | JsonSchemaFormat | None, about("The format of the answer.")
    ] = None
    guided_json: SchemaOrText = ABSENT
    guided_regex: GuidedRegex | None = None
    guided_choice: Choices = ABSENT
    guided_grammar: GuidedGrammar | None = None
    regex: Annotated[LongText | None, about("The same as `guided_regex`.")] = None
    structured_outputs: Annotated[
        StructuredOutputs | None,
        about("vLLM's form of the `guided_` fields. Set one of its fields."),
    ] = None
    bad_words: BadWords | None = None
    metadata: NoEffect = ABSENT


class CompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/completions."""

    prompt: Prompt
    max_tokens: Annotated[
        Count | None, about("Maximum length of the answer in tokens. Default: 16.")
    ] = None
    logprobs: Logprobs | Literal[False] | None = None
    best_of: Annotated[
        N | None,
        about(
            "Generates this many answers per prompt and returns the `n` likeliest. Not in streams."
        ),
    ] = None
    echo: Echo | None = None
    add_special_tokens: AddSpecialTokens | None = None


class FunctionDefinition(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: ToolName
    description: LongText | None = None
    parameters: ObjectOrNull = ABSENT
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Arguments fit the schema also where calls are the model's choice."""


class ToolDefinition(Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition
    cache_control: NoEffect = ABSENT


class FunctionName(Struct, forbid_unknown_fields=True):
    """The function of a `tool_choice`."""

    name: LongText


class NamedTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """One function that must be called."""

    type: Literal["function"]
    function: FunctionName


Tools = Annotated[list[ToolDefinition], Meta(max_length=1024)]


class ChatRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[Messages, about("The conversation so far.")]
    add_generation_prompt: AddGenerationPrompt | None = None
    continue_final_message: ContinueFinalMessage | None = None
    chat_template_kwargs: TemplateKwargs = ABSENT
    chat_template_name: TemplateName | None = None
    reasoning_effort: Annotated[
        ReasoningEffort | None,
        about(
            "none turns reasoning off: the template's enable_thinking and thinking become false. "
            "Other values set the template's variable reasoning_effort and are refused if it has "
            "none.",
            off=("none",),
        ),
    ] = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: Annotated[
        MaxTokens | None, about("Same as `max_tokens`, and wins over it.")
    ] = None
    logprobs: Annotated[bool | None, about("Returns the log-prob of each token.", off=(False,))] = (
        None
    )
    top_logprobs: Annotated[
        TopLogprobs | None, about("Number of alternatives for each token. Needs `logprobs`.")
    ] = None
    tools: Annotated[Tools | None, about("Functions that the model may call.", off=([],))] = None
    tool_choice: Annotated[
        Literal["auto", "none", "required"] | NamedTool | None,
        about(
            "Whether the model calls a tool. Default: auto. With none, the prompt has no tools.",
            off=("none", "auto"),
        ),
    ] = None
    parallel_tool_calls: ParallelToolCalls | None = None


class TokenizeTextRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /tokenize for plain text."""

    prompt: Text
    model: ModelName | None = None
    add_special_tokens: AddSpecialTokens | None = None
    return_token_strs: bool | None = None


class TokenizeChatRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /tokenize for messages."""

    messages: Messages
    tools: Tools | None = None
    """Functions that the model may call."""
    add_generation_prompt: AddGenerationPrompt | None = None
    continue_final_message: ContinueFinalMessage | None = None
    chat_template_kwargs: TemplateKwargs = ABSENT
    chat_template_name: TemplateName | None = None
    model: ModelName | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /detokenize."""

    tokens: Ids
    model: ModelName | None = None
