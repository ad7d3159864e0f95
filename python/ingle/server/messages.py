"""[1] [8] POST /v1/messages: the request becomes a chat, the chat's answer becomes a message.

Event loop, no I/O. Anthropic's API in front of the core's chat completions, as responses.py is
OpenAI's newer one: convenience, not the fast path. Agents speak it.
"""

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ingle.errors import RefusedError
from ingle.fields import PLAIN
from ingle.server.convert import Caller
from ingle.server.messages_turns import messages
from ingle.server.protocol import (
    ChatRequest,
    FunctionDefinition,
    FunctionName,
    JsonSchema,
    JsonSchemaFormat,
    NamedTool,
    StreamOptions,
    ToolDefinition,
)
from ingle.server.protocol_anthropic import (
    AnyChoice,
    MessagesRequest,
    NoChoice,
    PromptFields,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolChoice,
)
from ingle.server.raw import ABSENT, decoded, given, must_be
from ingle.server.structured import tool_name

RENAMED = {
    "stop": [("stop", "stop_sequences")],
    "response_format": [("response_format", "output_config.format")],
    "tools": [("].function.parameters", "].input_schema"), ("].function.", "].")],
    "continue_final_message": [("continue_final_message", "messages")],
}
"""What is called otherwise in errors about a field, by that field."""
WORD = re.compile(r"[.\[]")
SAME_FIELDS = (*PLAIN, *"stream seed min_tokens ignore_eos priority cache_salt".split())


def chat_request(request: MessagesRequest, max_tokens: int | None) -> ChatRequest:
    """The chat that asks the same; `max_tokens` None means the rest of the context."""
    chat = prompt_request(request)
    chat.max_tokens = max_tokens
    if request.stop_sequences:
        chat.stop = Raw(msgspec.json.encode(request.stop_sequences))
    if request.stream:
        # The first event tells how long the prompt is.
        chat.stream_options = StreamOptions(include_usage=True, continuous_usage_stats=True)
    for name in SAME_FIELDS:
        setattr(chat, name, getattr(request, name))
    return chat


def prompt_request(request: PromptFields) -> ChatRequest:
    """A chat with the same prompt, which tools and the form of the answer belong to."""
    turns = messages(request)
    goes_on = turns[-1].role == "assistant" and not turns[-1].tool_calls
    choice = request.tool_choice
    is_single = not isinstance(choice, NoChoice | None) and choice.disable_parallel_tool_use
    form = request.output_config.format if request.output_config else None
    return ChatRequest(
        messages=turns,
        continue_final_message=goes_on or None,
        tools=[
            ToolDefinition(
                type="function",
                function=FunctionDefinition(
                    name=tool_name(tool.name, f"tools[{i}].name"),
                    description=tool.description,
                    parameters=must_be(tool.input_schema, f"tools[{i}].input_schema", "object"),
                    strict=tool.strict,
                ),
            )
            for i, tool in enumerate(request.tools or ())
        ],
        tool_choice=tool_choice(request),
        parallel_tool_calls=False if is_single else None,
        chat_template_kwargs=template_kwargs(request),
        response_format=JsonSchemaFormat(json_schema=JsonSchema(schema=form.schema))
        if form
        else None,
    )


def tool_choice(request: PromptFields) -> Any:
    """`tool_choice` as chat completions know it."""
    match request.tool_choice:
        case AnyChoice():
            return "required"
        case ToolChoice(name=name):
            return NamedTool(type="function", function=FunctionName(name))
        case NoChoice():
            return "none"
    return None


def template_kwargs(request: PromptFields) -> Raw:
    """The template's variables: what `thinking` and `effort` say, as published templates read it.

    Those that the request sets itself win.
    """
    variables: dict[str, Any] = {}
    if request.thinking is not None:
        is_on = not isinstance(request.thinking, ThinkingDisabled)
        variables |= {"enable_thinking": is_on, "thinking": is_on}
    if isinstance(request.thinking, ThinkingEnabled):
        variables["thinking_budget"] = request.thinking.budget_tokens
    if request.output_config is not None and request.output_config.effort is not None:
        variables["reasoning_effort"] = request.output_config.effort
    own = given(request.chat_template_kwargs)
    if not variables:
        return own or ABSENT
    if own is not None:
        variables |= decoded(own, dict[str, Raw], "chat_template_kwargs")
    return Raw(msgspec.json.encode(variables))


def is_beyond_context(error: RefusedError) -> bool:
    """Whether only `max_tokens` is too large for the context: then what fits is the answer."""
    return error.code == "context_length_exceeded" and error.param == "max_tokens"


def renamed(error: RefusedError) -> RefusedError:
    """The error in the words of this endpoint: a chat's fields have other names here."""
    param, message = error.param or "", error.message
    for old, new in RENAMED.get(WORD.split(param, 1)[0], ()):
        param, message = param.replace(old, new), message.replace(old, new)
    if error.code == "context_length_exceeded" and param == "messages":
        # Agents look for these words: they then shorten the conversation.
        message = f"prompt is too long: {message}"
    return RefusedError(message, param or None, error.code, error.status)


class ChatChoice(Struct):
    """The only choice of a whole chat answer."""

    message: dict[str, Any]
    finish_reason: str
    stop_reason: str | int | None = None


class Chat(Struct):
    """A whole chat answer."""

    choices: list[ChatChoice]
    usage: dict[str, Any]


class Shape:
    """What is known of a message before its content."""

    def __init__(self, caller: Caller) -> None:
        self.chunked = caller.chunked
        """Whether a stream's events need chunk framing."""
        self.fills_context = False
        """Whether the answer may be as long as the context allows, and no longer."""
        self._id, self._model = caller.response_id, caller.model

    def message(
        self, content: list[dict[str, Any]], end: dict[str, Any], usage: dict[str, Any]
    ) -> dict[str, Any]:
        """The message; `end` is from `stop`."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **end,
            "usage": usage,
        }

    def stop(self, finish_reason: str | None, cause: str | int | None) -> dict[str, Any]:
        """Why the answer ends; `cause` is the text or token id that ended it, if one did."""
        is_sequence = finish_reason == "stop" and isinstance(cause, str)
        reason = "stop_sequence" if is_sequence else STOP_REASONS.get(finish_reason or "")
        if reason == "max_tokens" and self.fills_context:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": cause if is_sequence else None}


STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


def usage_of(usage: dict[str, Any], num_thinking: int) -> dict[str, Any]:
    """A chat's usage in Anthropic's words: input tokens are those that no cache had.

    `num_thinking` is the caller's count of the thinking's text, which may have been fewer tokens
    when the model wrote it.
    """
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    num_output = usage["completion_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": num_output,
        "output_tokens_details": {"thinking_tokens": min(num_thinking, num_output)},
    }


def content_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a whole chat answer's message."""
    blocks: list[dict[str, Any]] = []
    if answer.get("reasoning_content"):
        blocks.append(new_block("thinking", thinking=answer["reasoning_content"]))
    if answer.get("content"):
        blocks.append(new_block("text", text=answer["content"]))
    for call in answer.get("tool_calls") or ():
        function = call["function"]
        asked = input_of(function["arguments"])
        blocks.append(new_block("tool_use", id=call["id"], name=function["name"], input=asked))
    return blocks


def new_block(kind: str, **fields: Any) -> dict[str, Any]:
    """A content block, empty unless `fields` say otherwise."""
    return {"type": kind, **EMPTY_BLOCKS[kind], **fields}


EMPTY_BLOCKS: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def input_of(arguments: str) -> Any:
    """A call's arguments as JSON; an empty object where the token limit cut them off."""
    try:
        return msgspec.json.decode(arguments, type=Raw) if arguments else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
