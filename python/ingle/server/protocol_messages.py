"""[1] Chat messages as types, including what clients send back in them. Any thread.

Plain data, like protocol.py. convert.py turns them into the template's input.
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from ingle.fields import LongText
from ingle.server.protocol_fields import TEXT, Anything, Arguments, Text, TextOrNull
from ingle.server.raw import ABSENT

PARTS = [{"$ref": f"#/components/schemas/{name}"} for name in ("TextPart", "RefusalPart")]
CONTENT = {"anyOf": [TEXT, {"type": "array", "items": {"anyOf": PARTS}}, {"type": "null"}]}


class TextPart(Struct, kw_only=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A text part of a message's content."""

    text: Text
    # Labels and hints that clients add or send back. They have no effect.
    annotations: Anything = ABSENT
    cache_control: Anything = ABSENT
    id: Anything = ABSENT
    index: Anything = ABSENT
    prompt_cache_breakpoint: Anything = ABSENT
    provider_specific_fields: Anything = ABSENT


class RefusalPart(Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """What an assistant said instead of an answer: a text like others."""

    refusal: Text


Parts = list[TextPart | RefusalPart]
Content = Annotated[Raw, Meta(extra_json_schema=CONTENT, extra={"shape": Parts})]


class FunctionCall(Struct, kw_only=True, forbid_unknown_fields=True):
    """The function that an earlier assistant message called."""

    name: LongText
    arguments: Arguments = ABSENT
    parsed_arguments: Anything = ABSENT
    """No effect: what the official client made of `arguments`."""
    provider_specific_fields: Anything = ABSENT
    """No effect."""


class ToolCall(Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool call of an earlier assistant message, for the template."""

    id: LongText | None = None
    type: Literal["function"] | None = None
    index: int | None = None
    """No effect: the order says it."""
    function: FunctionCall
    # No effect.
    cache_control: Anything = ABSENT
    extra_content: Anything = ABSENT
    provider_specific_fields: Anything = ABSENT


class Message(Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of a chat.

    Whole answers come back as messages, so that whatever the official client, litellm and
    langchain echo in them is a field here.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """A function's message, the older form, is a tool's."""
    content: Content = ABSENT
    """Text, or text parts, which are joined by a line feed."""
    name: LongText | None = None
    """Passed to the chat template: the name of the tool, or of the user."""
    tool_calls: list[ToolCall] | None = None
    tool_call_id: LongText | None = None
    function_call: FunctionCall | None = None
    """The older form of a single tool call."""
    reasoning_content: TextOrNull = ABSENT
    reasoning: TextOrNull = ABSENT
    """The same under the name that some clients use."""
    refusal: TextOrNull = ABSENT
    """What an assistant said where it has no content."""
    audio: None = None
    # Labels, hints and copies of other fields. They have no effect.
    annotations: Anything = ABSENT
    cache_control: Anything = ABSENT
    id: Anything = ABSENT
    parsed: Anything = ABSENT
    """What the official client made of `content`."""
    provider_specific_fields: Anything = ABSENT
    reasoning_details: Anything = ABSENT
    thinking_blocks: Anything = ABSENT
    type: Anything = ABSENT


Messages = Annotated[list[Message], Meta(min_length=1, max_length=16384)]
