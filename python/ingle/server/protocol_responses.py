"""[1] The body of POST /v1/responses as types. Any thread; plain data, like protocol.py.

The endpoint is stateless: a request that names an earlier answer, or asks to store this one, is
refused. responses.py checks rules that involve several fields and translates to a chat.
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

from ingle.fields import Count, LongText, ShortText, about
from ingle.server.protocol import AnswerFields
from ingle.server.protocol_fields import (
    TEXT,
    Anything,
    MaxTokens,
    Object,
    ObjectOrNull,
    ParallelToolCalls,
    ReasoningEffort,
    TemplateKwargs,
    TemplateName,
    TextOrNull,
    ToolName,
    TopLogprobs,
)
from ingle.server.raw import ABSENT


class ContentPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """Text of an item, as a client writes it or as an earlier answer had it."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"]
    text: TextOrNull = ABSENT
    """Of every part but a refusal."""
    refusal: TextOrNull = ABSENT
    """What an assistant said instead of an answer: a text like others."""
    # Labels, hints and what the official client derived from `text`. They have no effect.
    annotations: Anything = ABSENT
    cache_control: Anything = ABSENT
    logprobs: Anything = ABSENT
    parsed: Anything = ABSENT
    prompt_cache_breakpoint: Anything = ABSENT


ONE_PART = {"$ref": "#/components/schemas/ContentPart"}
CONTENT = {"anyOf": [TEXT, {"type": "array", "items": ONE_PART}, {"type": "null"}]}
ITEMS = {
    "type": "array",
    "items": {"$ref": "#/components/schemas/InputItem"},
    "minItems": 1,
    "maxItems": 16384,
}
Parts = list[ContentPart]
Content = Annotated[Raw, Meta(extra_json_schema=CONTENT, extra={"shape": Parts})]


class InputItem(Struct, kw_only=True, forbid_unknown_fields=True):
    """A message, a call, a call's result or the reasoning of an earlier answer."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    """Of a message."""
    content: Content = ABSENT
    """Of a message or of reasoning; parts are joined by a line feed."""
    call_id: ShortText | None = None
    name: Annotated[str, Meta(max_length=128)] | None = None
    """Of a function_call."""
    arguments: TextOrNull = ABSENT
    """Of a function_call: JSON as text."""
    parsed_arguments: Anything = ABSENT
    """No effect: what the official client made of `arguments`."""
    is_async: Literal[False] | None = field(default=None, name="async")
    output: Content = ABSENT
    """Of a function_call_output."""
    summary: Parts | None = None
    """No effect."""
    encrypted_content: None = None
    """Reasoning is text here, in `content`."""
    id: LongText | None = None
    """No effect."""
    status: LongText | None = None
    """No effect."""
    phase: LongText | None = None
    """No effect."""


InputItems = Annotated[list[InputItem], Meta(min_length=1, max_length=16384)]
FORMS = {"anyOf": [TEXT, ITEMS]}
Input = Annotated[
    Raw,
    Meta(
        extra_json_schema=FORMS,
        extra={"shape": InputItems, "allowed": "a string or a list of 1 to 16384 items"},
    ),
]


class ResponseTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call; there is no other kind of tool."""

    type: Literal["function"]
    name: ToolName
    description: LongText | None = None
    parameters: ObjectOrNull = ABSENT
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Arguments fit the schema also where calls are the model's choice."""
    allowed_callers: list[Literal["direct"]] | None = None
    """No effect: nobody else could call it."""
    defer_loading: Literal[False] | None = None
    is_async: Literal[False] | None = field(default=None, name="async")


class ResponseToolChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """One function that must be called."""

    type: Literal["function"]
    name: LongText


class PlainText(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectText(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """Any JSON object."""


class JsonSchemaText(
    Struct, tag_field="type", tag="json_schema", kw_only=True, forbid_unknown_fields=True
):
    """JSON that fits a schema."""

    name: ShortText | None = None
    description: LongText | None = None
    """No effect."""
    schema: Object
    strict: bool | None = None
    """No effect: answers always fit the schema."""


class TextOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the text."""

    format: PlainText | JsonObjectText | JsonSchemaText | None = None
    verbosity: Literal["medium"] | None = None
    """No effect; other values are refused."""


class ReasoningOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """Options for reasoning. None of them limits its length."""

    effort: ReasoningEffort | None = None
    """As `reasoning_effort` on chat completions."""
    summary: None = None
    generate_summary: None = None


class ResponsesRequest(AnswerFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/responses."""

    input: Annotated[Input, about("A text, or the items of a conversation.")]
    instructions: Annotated[TextOrNull, about("A system message before the conversation.")] = ABSENT
    stream_options: Annotated[ObjectOrNull, about("No effect: streams are never obfuscated.")] = (
        ABSENT
    )
    max_output_tokens: MaxTokens | None = None
    top_logprobs: Annotated[
        TopLogprobs | None,
        about("Number of alternatives per token. Needs message.output_text.logprobs in `include`."),
    ] = None
    include: Annotated[
        list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None,
        about(
            "message.output_text.logprobs returns log-probs. reasoning.encrypted_content has no "
            "effect: reasoning is returned as text."
        ),
    ] = None
    text: Annotated[TextOptions | None, about("The format of the answer.")] = None
    reasoning: Annotated[
        ReasoningOptions | None, about("effort: as reasoning_effort on chat completions.")
    ] = None
    tools: Annotated[
        Annotated[list[ResponseTool], Meta(max_length=1024)] | None,
        about("Functions that the model may call.", off=([],)),
    ] = None
    tool_choice: Annotated[
        Literal["auto", "none", "required"] | ResponseToolChoice | None,
        about("Whether the model calls a tool. Default: auto.", off=("none", "auto")),
    ] = None
    parallel_tool_calls: ParallelToolCalls | None = None
    max_tool_calls: Annotated[
        Count | None,
        about("No effect: it limits calls of built-in tools, and there are none."),
    ] = None
    background: Annotated[Literal[False] | None, about("Background mode is not supported.")] = None
    truncation: Annotated[
        Literal["disabled"] | None, about("An input beyond the context is refused, not truncated.")
    ] = None
    metadata: Annotated[
        Annotated[dict[ShortText, ShortText], Meta(max_length=16)] | None,
        about("Returned with the response."),
    ] = None
    # Not in OpenAI's API. The meaning is that of chat completions.
    chat_template_kwargs: TemplateKwargs = ABSENT
    chat_template_name: TemplateName | None = None
