"""[1] The bodies of POST /v1/messages and /v1/messages/count_tokens as types: Anthropic's API.

Any thread; plain data, like protocol.py. messages.py checks rules that involve several fields and
translates to a chat.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from ingle.fields import (
    LIMITS,
    CacheSalt,
    Count,
    IgnoreEos,
    LongText,
    MinTokens,
    Priority,
    Seed,
    ShortText,
    StopText,
    about,
    plain_struct,
)
from ingle.server.protocol_fields import (
    TEXT,
    Anything,
    MaxTokens,
    ModelName,
    NoEffect,
    Object,
    RequestId,
    TemplateKwargs,
    TemplateName,
    Text,
    ToolName,
)
from ingle.server.raw import ABSENT

MOST_BLOCKS = 16384


def _content(*kinds: str) -> dict[str, Any]:
    """The JSON schema of a text, or of a list of blocks of these types."""
    refs = [{"$ref": f"#/components/schemas/{kind}"} for kind in kinds]
    blocks = {"type": "array", "items": {"anyOf": refs}, "maxItems": MOST_BLOCKS}
    return {"anyOf": [TEXT, blocks]}


class TextBlock(Struct, kw_only=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A text."""

    text: Text
    # Labels, hints and what the official client derived from `text`. They have no effect.
    cache_control: Anything = ABSENT
    citations: Anything = ABSENT
    parsed_output: Anything = ABSENT


TextBlocks = Annotated[list[TextBlock], Meta(max_length=MOST_BLOCKS)]
SystemContent = Annotated[
    Raw, Meta(extra_json_schema=_content("TextBlock"), extra={"shape": TextBlocks})
]


class ToolUseBlock(
    Struct, kw_only=True, tag_field="type", tag="tool_use", forbid_unknown_fields=True
):
    """A call in an earlier answer of the model."""

    id: ShortText
    name: LongText
    input: Object
    cache_control: Anything = ABSENT
    """No effect."""
    caller: Anything = ABSENT
    """No effect: only the model calls tools here."""


class ToolResultBlock(
    Struct, kw_only=True, tag_field="type", tag="tool_result", forbid_unknown_fields=True
):
    """What a call brought."""

    tool_use_id: ShortText
    content: Annotated[
        Raw, Meta(extra_json_schema=_content("TextBlock"), extra={"shape": TextBlocks})
    ] = ABSENT
    """Text, or text blocks, which are joined by a line feed."""
    is_error: bool | None = None
    """No effect: chat templates know no failed results; say it in `content`."""
    cache_control: Anything = ABSENT
    """No effect."""


class ThinkingBlock(
    Struct, kw_only=True, tag_field="type", tag="thinking", forbid_unknown_fields=True
):
    """The reasoning in an earlier answer of the model."""

    thinking: Text
    signature: Anything = ABSENT
    """No effect: reasoning is plain text here."""


Blocks = Annotated[
    list[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock],
    Meta(max_length=MOST_BLOCKS),
]
BLOCKS = _content("TextBlock", "ToolUseBlock", "ToolResultBlock", "ThinkingBlock")
BlockContent = Annotated[Raw, Meta(extra_json_schema=BLOCKS, extra={"shape": Blocks})]


class Turn(Struct, kw_only=True, forbid_unknown_fields=True):
    """One message; several in a row with one role are one turn."""

    role: Literal["user", "assistant", "system"]
    content: BlockContent
    """Text or blocks: texts and results of a user, texts, calls and thinking of an assistant.

    If the last message is an assistant's, the answer goes on with it."""


class ClientTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call; there are no tools that the server runs."""

    name: ToolName
    input_schema: Object
    """JSON schema of the input."""
    description: LongText | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    """Inputs fit the schema also where calls are the model's choice."""
    allowed_callers: list[Literal["direct"]] | None = None
    """No effect: nobody else could call it."""
    cache_control: Anything = ABSENT
    """No effect."""
    defer_loading: Literal[False] | None = None
    eager_input_streaming: bool | None = None
    """No effect: inputs are always streamed as they come."""


class AutoChoice(Struct, kw_only=True, tag_field="type", tag="auto", forbid_unknown_fields=True):
    """The model chooses whether it calls a tool."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, kw_only=True, tag_field="type", tag="any", forbid_unknown_fields=True):
    """The model must call some tool."""

    disable_parallel_tool_use: bool | None = None


class ToolChoice(Struct, kw_only=True, tag_field="type", tag="tool", forbid_unknown_fields=True):
    """The model must call this tool."""

    name: LongText
    disable_parallel_tool_use: bool | None = None


class NoChoice(Struct, tag_field="type", tag="none", forbid_unknown_fields=True):
    """The prompt does not mention the tools."""


class ThinkingEnabled(
    Struct, kw_only=True, tag_field="type", tag="enabled", forbid_unknown_fields=True
):
    """The model reasons before it answers, if its chat template can say so."""

    budget_tokens: Count
    """Given to the template as `thinking_budget`; `max_tokens` is what bounds the answer."""
    display: Literal["summarized"] | None = None
    """No effect: reasoning always comes whole."""


class ThinkingAdaptive(
    Struct, kw_only=True, tag_field="type", tag="adaptive", forbid_unknown_fields=True
):
    """The same; how long is left to the model."""

    display: Literal["summarized"] | None = None
    """No effect: reasoning always comes whole."""


class ThinkingDisabled(Struct, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    """The model answers at once, if its chat template can say so."""


class JsonOutput(
    Struct, kw_only=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True
):
    """JSON that fits a schema."""

    schema: Object


class OutputConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer, and how hard the model thinks about it."""

    format: JsonOutput | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """The variable reasoning_effort of the chat template, where it reads that."""


class PromptFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What makes the prompt."""

    messages: Annotated[
        list[Turn], about("The conversation so far.", min_length=1, max_length=16384)
    ]
    system: Annotated[
        SystemContent,
        about(
            "A system message: text, or text blocks, which are joined by a line feed.",
            allowed="a string or a list of at most 16384 items",
        ),
    ] = ABSENT
    model: ModelName | None = None
    tools: Annotated[
        Annotated[list[ClientTool], Meta(max_length=1024)] | None,
        about("Functions that the model may call.", off=([],)),
    ] = None
    tool_choice: Annotated[
        AutoChoice | AnyChoice | ToolChoice | NoChoice | None,
        about("Whether the model calls a tool. Default: auto. With none, the prompt has no tools."),
    ] = None
    thinking: Annotated[
        ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None,
        about(
            "Sets the chat template's variables enable_thinking and thinking. Default: the "
            "template's own."
        ),
    ] = None
    output_config: Annotated[OutputConfig | None, about("The format of the answer.")] = None
    cache_control: Annotated[Anything, about("No effect: prefix caching is automatic.")] = ABSENT
    # Not in Anthropic's API. The meaning is that of chat completions.
    chat_template_kwargs: TemplateKwargs = ABSENT
    chat_template_name: TemplateName | None = None
    request_id: RequestId | None = None


class CountTokensRequest(PromptFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/messages/count_tokens."""


if TYPE_CHECKING:

    class PlainFields(PromptFields, kw_only=True, forbid_unknown_fields=True):
        """PromptFields and the plain sampling fields; see `SAMPLING_FIELDS` of the core."""

        def __getattr__(self, name: str) -> Any: ...

else:
    PlainFields = plain_struct(
        "PlainFields",
        "PromptFields and the plain sampling fields; see `SAMPLING_FIELDS` of the core.",
        PromptFields,
        checked=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


class MessagesRequest(PlainFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/messages."""

    max_tokens: Annotated[
        MaxTokens,
        about(
            "Maximum length of the answer in tokens, thinking included. Reduced to the room left "
            "in the context; stop_reason is then model_context_window_exceeded."
        ),
    ]
    stream: Annotated[bool | None, about("Streams the answer.", off=(False,))] = None
    stop_sequences: Annotated[
        Annotated[list[StopText], Meta(max_length=LIMITS.stops)] | None,
        about("Stop strings.", off=([],)),
    ] = None
    metadata: NoEffect = ABSENT
    service_tier: Annotated[Literal["auto", "standard_only"] | None, about("No effect.")] = None
    speed: Annotated[Literal["standard"] | None, about("No effect.")] = None
    # Not in Anthropic's API. The meaning is that of chat completions.
    seed: Seed | None = None
    min_tokens: MinTokens | None = None
    ignore_eos: IgnoreEos | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
