"""[1] The requests of the HTTP API as types: every limit that one field can have stands here.

Any thread; plain data. `null` equals absent everywhere. Unknown fields never get this far, see
parse.py. What may be long stays JSON text, see raw.py; its limits, the checks that need two fields,
and the way to the core's document are in convert.py.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ingle.server.protocol_fields import (
    AllowedOrNull,
    Anything,
    BadWords,
    BiasOrNull,
    Choices,
    Count,
    Ids,
    Int64,
    LongText,
    Object,
    ObjectOrNull,
    Prompt,
    SchemaOrText,
    ShortText,
    StopIdsOrNull,
    StopOrNull,
    Text,
    ToolName,
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


class Labels(Struct, kw_only=True, forbid_unknown_fields=True):
    """Labels, hints and wishes of every request that have no effect, or none but to be refused."""

    user: Anything = ABSENT
    """No effect."""
    safety_identifier: Anything = ABSENT
    """No effect."""
    prompt_cache_key: Anything = ABSENT
    """No effect: the core finds equal prefixes by itself."""
    prompt_cache_options: Anything = ABSENT
    """No effect, for the same reason."""
    prompt_cache_retention: Anything = ABSENT
    """No effect: a prefix is kept while there is room."""
    store: Literal[False] | None = None
    """Nothing is kept."""
    service_tier: Literal["auto", "default"] | None = None
    """No effect."""
    modalities: list[Literal["text"]] | None = None
    """No effect."""


class SamplingFields(Labels, kw_only=True, forbid_unknown_fields=True):
    """What completions and chat have in common."""

    model: Annotated[str, Meta(max_length=1024)] | None = None
    """Served model's name; absent means the one that is served."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    """Choices for each prompt."""
    seed: Int64 | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """-1 and 0 mean off."""
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: BiasOrNull = ABSENT
    allowed_token_ids: AllowedOrNull = ABSENT
    min_tokens: Count | None = None
    stop: StopOrNull = ABSENT
    """A text that ends a choice, or up to 64 of them, among which token ids may stand as well."""
    stop_token_ids: StopIdsOrNull = ABSENT
    """Tokens that end a choice; at most 128, those in `stop` included."""
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """Keeps only so many of the prompt's last tokens; -1: as many as fit."""
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """vLLM's: log-probs of the prompt's tokens, each with so many alternatives; not in streams."""
    return_token_ids: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """Lower runs first."""
    cache_salt: ShortText | None = None
    """Requests share cached prefixes only if this and the tenant are equal."""
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    guided_json: SchemaOrText = ABSENT
    """A JSON schema that answers fit."""
    guided_regex: LongText | None = None
    """A regex, in the syntax of Rust's crate, that matches the whole of each answer."""
    guided_choice: Choices = ABSENT
    """Answers are one of these."""
    guided_grammar: LongText | None = None
    """A grammar in llguidance's dialect of Lark."""
    regex: LongText | None = None
    """The same as `guided_regex`."""
    structured_outputs: StructuredOutputs | None = None
    bad_words: BadWords | None = None
    """None of these stands in an answer after its reasoning, however its tokens are cut. One that
    they leave no way on ends with the finish reason `content_filter`."""
    request_id: Annotated[str, Meta(max_length=256, pattern=r"^[\x21-\x7e]*$(?!\n)")] | None = None
    """Comes back as X-Request-Id; may repeat."""
    metadata: Anything = ABSENT
    """No effect."""


class CompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/completions."""

    prompt: Prompt
    """Text, texts, token ids, or lists of token ids. Ids are used as they are."""
    max_tokens: Count | None = None
    """Absent means 16."""
    logprobs: Annotated[int, Meta(ge=0, le=20)] | Literal[False] | None = None
    """Alternatives with each token; 0 gives the token's own alone."""
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    """Makes so many choices for each prompt and tells the `n` likeliest; not in streams."""
    echo: bool | None = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its start token; default true."""


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
    cache_control: Anything = ABSENT
    """No effect."""


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

    messages: Messages
    add_generation_prompt: bool | None = None
    """Ends the prompt with the start of an assistant's turn; default true."""
    continue_final_message: bool | None = None
    """Leaves the last message open, so that the answer goes on with it."""
    chat_template_kwargs: ObjectOrNull = ABSENT
    """Further variables of the model's template."""
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Wins over `max_tokens`; absent means the rest of the context."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Alternatives with each token; needs `logprobs`."""
    tools: Tools | None = None
    """Functions that the model may call."""
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    """Absent means auto. With `none` the model is not told of the tools."""
    parallel_tool_calls: bool | None = None
    """Whether one answer may have several calls; default true. No effect without tools."""


class TokenizeTextRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /tokenize for plain text."""

    prompt: Text
    model: LongText | None = None
    add_special_tokens: bool | None = None
    """Default true."""
    return_token_strs: bool | None = None


class TokenizeChatRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /tokenize for messages."""

    messages: Messages
    tools: Tools | None = None
    """Functions that the model may call."""
    add_generation_prompt: bool | None = None
    """Ends the prompt with the start of an assistant's turn; default true."""
    continue_final_message: bool | None = None
    """Leaves the last message open, so that the answer goes on with it."""
    chat_template_kwargs: ObjectOrNull = ABSENT
    """Further variables of the model's template."""
    model: LongText | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /detokenize."""

    tokens: Ids
    model: LongText | None = None
