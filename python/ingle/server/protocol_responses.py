"""[1] The body of POST /v1/responses as types. Any thread; plain data, as protocol.py.

The endpoint keeps nothing: what names an earlier answer, or asks to keep this one, is refused. Its
checks of several fields, and the way to a chat, are in responses.py.
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

from ingle.server.protocol import Labels
from ingle.server.protocol_fields import (
    TEXT,
    Anything,
    Count,
    Int64,
    LongText,
    Object,
    ObjectOrNull,
    ShortText,
    StopOrNull,
    TextOrNull,
    ToolName,
)
from ingle.server.raw import ABSENT


class ContentPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """Text of an item, as a client writes it or as an earlier answer had it."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"]
    text: TextOrNull = ABSENT
    """Of every part but a refusal."""
    refusal: TextOrNull = ABSENT
    """What an assistant said instead of an answer: a text like others."""
    # Labels and hints, and what the official client made of `text`: no effect.
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
Input = Annotated[Raw, Meta(extra_json_schema=FORMS, extra={"shape": InputItems})]


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
    """Only with everything absent: how long a model thinks is its own affair."""

    effort: None = None
    summary: None = None
    generate_summary: None = None


class ResponsesRequest(Labels, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/responses."""

    input: Input
    model: Annotated[str, Meta(max_length=1024)] | None = None
    """Served model's name; absent means the one that is served."""
    instructions: TextOrNull = ABSENT
    """A system message in front."""
    stream: bool | None = None
    stream_options: ObjectOrNull = ABSENT
    """No effect: nothing is obfuscated."""
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Absent means the rest of the context."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Alternatives with each token; needs message.output_text.logprobs in `include`."""
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = (
        None
    )
    """Log-probs of the text. The other has no effect: reasoning comes as text, never encrypted."""
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=1024)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """Whether one answer may have several calls; default true."""
    max_tool_calls: Count | None = None
    """No effect: it counts calls of built-in tools, which there are none of."""
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    """Too long an input is refused."""
    metadata: Annotated[dict[ShortText, ShortText], Meta(max_length=16)] | None = None
    """Comes back."""
    # Not OpenAI's: as on chat completions.
    seed: Int64 | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    stop: StopOrNull = ABSENT
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: ObjectOrNull = ABSENT
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: ShortText | None = None
    request_id: Annotated[str, Meta(max_length=256, pattern=r"^[\x21-\x7e]*$(?!\n)")] | None = None
    """Comes back as X-Request-Id; may repeat."""
