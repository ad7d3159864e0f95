"""[1] Translates the turns of a /v1/messages request to chat messages. Any thread, no I/O."""

from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Raw, Struct

from ingle.errors import RefusedError
from ingle.server.protocol_anthropic import (
    Blocks,
    PromptFields,
    TextBlock,
    TextBlocks,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from ingle.server.protocol_messages import FunctionCall, Message, ToolCall
from ingle.server.raw import (
    ABSENT,
    as_raw,
    decoded,
    given,
    joined,
    kind,
    must_be,
    refused,
    text_parts,
)

OF_ROLE: dict[str, tuple[type, ...]] = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ToolUseBlock, ThinkingBlock),
    "system": (TextBlock,),
}
UNSUPPORTED = {
    "search_result": "search results are not supported: send their text",
    "redacted_thinking": "encrypted thinking cannot be read here: leave the block out",
}
"""Block types that are refused, and why."""


@dataclass
class Draft:
    """A message under construction. Its texts are joined once, at the end: joining copies them."""

    role: Literal["system", "user", "assistant", "tool"]
    texts: list[Raw] = field(default_factory=list)
    thoughts: list[Raw] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    call_id: str | None = None
    """Set for a tool message, which is never merged with its neighbors."""

    def add(self, block: Any, place: str) -> None:
        """Adds a block. Errors: RefusedError names a field of the wrong type."""
        match block:
            case TextBlock():
                self.texts.append(must_be(block.text, f"{place}.text", "string"))
            case ThinkingBlock():
                self.thoughts.append(must_be(block.thinking, f"{place}.thinking", "string"))
            case ToolUseBlock():
                asked = must_be(block.input, f"{place}.input", "object")
                function = FunctionCall(name=block.name, arguments=asked)
                self.calls.append(ToolCall(id=block.id, function=function))

    def message(self) -> Message:
        """The whole message."""
        # An assistant message may consist of calls or thinking alone.
        empty = ABSENT if self.role == "assistant" else as_raw("")
        return Message(
            role=self.role,
            content=one(self.texts) if self.texts else empty,
            reasoning_content=one(self.thoughts) if self.thoughts else ABSENT,
            tool_calls=self.calls or None,
            tool_call_id=self.call_id,
        )


def messages(request: PromptFields) -> list[Message]:
    """The chat's messages. Consecutive turns of one role are merged, as Anthropic does."""
    drafts: list[Draft] = []
    system = given(request.system)
    if system is not None:
        drafts.append(Draft("system", [text(system, "system")]))
    for i, turn in enumerate(request.messages):
        take(turn, f"messages[{i}].content", drafts)
    return [draft.message() for draft in drafts]


def take(turn: Turn, place: str, drafts: list[Draft]) -> None:
    """Adds a turn. Tool results become messages of their own, in order."""
    content = must_be(turn.content, place, "string", "array")
    if kind(content) == "string":
        last_of(turn.role, drafts).texts.append(content)
        return
    blocks = blocks_of(content, Blocks, place)
    if not blocks:
        last_of(turn.role, drafts)
    for i, block in enumerate(blocks):
        if not isinstance(block, OF_ROLE[turn.role]):
            tag = type(block).__struct_config__.tag
            raise refused(f"{place}[{i}]", f"a message of role {turn.role} has no {tag} block")
        if isinstance(block, ToolResultBlock):
            result = given(block.content)
            texts = [] if result is None else [text(result, f"{place}[{i}].content")]
            drafts.append(Draft("tool", texts, call_id=block.tool_use_id))
        else:
            last_of(turn.role, drafts).add(block, f"{place}[{i}]")


def last_of(role: Literal["system", "user", "assistant"], drafts: list[Draft]) -> Draft:
    """The last message if it has this role, else a new one."""
    if not drafts or drafts[-1].role != role:
        drafts.append(Draft(role))
    return drafts[-1]


def one(texts: list[Raw]) -> Raw:
    """Texts as one."""
    return texts[0] if len(texts) == 1 else joined(texts)


def text(content: Raw, place: str) -> Raw:
    """Content as one text."""
    if kind(must_be(content, place, "string", "array")) == "string":
        return content
    blocks = blocks_of(content, TextBlocks, place)
    return joined(
        [must_be(block.text, f"{place}[{i}].text", "string") for i, block in enumerate(blocks)]
    )


def blocks_of(content: Raw, shape: Any, place: str) -> Any:
    """Content as blocks. Errors: RefusedError names an unsupported block type."""
    try:
        return text_parts(content, shape, place)
    except RefusedError:
        for i, block in enumerate(decoded(content, list[Typed], place)):
            if block.type in UNSUPPORTED:
                raise refused(f"{place}[{i}]", UNSUPPORTED[block.type]) from None
        raise


class Typed(Struct):
    """A block of which only the type matters."""

    type: str = ""
