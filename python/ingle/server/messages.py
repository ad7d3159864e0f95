"""[1] [8] POST /v1/messages: translates the request to a chat and the chat's answer to a message.

Event loop, no I/O. This puts Anthropic's API in front of the core's chat completions, as
responses.py does for OpenAI's Responses API. It is a convenience, not the fast path.
"""

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ingle.errors import RefusedError
from ingle.server.convert import Caller
from ingle.server.messages_turns import messages
from ingle.server.protocol import (
    ChatRequest,
    FunctionName,
    JsonSchema,
    JsonSchemaFormat,
    NamedTool,
    StreamOptions,
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
from ingle.server.structured import function_tool

RENAMED = {
    "stop": [("stop", "stop_sequences")],
    "response_format": [("response_format", "output_config.format")],
    "tools": [("].function.parameters", "].input_schema"), ("].function.", "].")],
    "continue_final_message": [("continue_final_message", "messages")],
}
"""Replacements in errors about a field, by the chat's name of that field."""
WORD = re.compile(r"[.\[]")
OTHER_MEANING = ("max_tokens", "metadata", "service_tier")
"""Fields that a chat request has under the same name and that are not copied."""
SAME_FIELDS = [
    name
    for name in MessagesRequest.__struct_fields__
    if name in ChatRequest.__struct_fields__
    and name not in PromptFields.__struct_fields__
    and name not in OTHER_MEANING
]
"""Fields that a chat request takes as they are."""


def chat_request(request: MessagesRequest, max_tokens: int | None) -> ChatRequest:
    """The equivalent chat request. A `max_tokens` of None means the rest of the context."""
    chat = prompt_request(request)
    chat.max_tokens = max_tokens
    if request.stop_sequences:
        chat.stop = Raw(msgspec.json.encode(request.stop_sequences))
    if request.stream:
        # message_start needs the prompt's token count, so the first chunk must carry usage.
        chat.stream_options = StreamOptions(include_usage=True, continuous_usage_stats=True)
    for name in SAME_FIELDS:
        setattr(chat, name, getattr(request, name))
    return chat


def prompt_request(request: PromptFields) -> ChatRequest:
    """A chat request with the same prompt, tools and output format."""
    turns = messages(request)
    goes_on = turns[-1].role == "assistant" and not turns[-1].tool_calls
    choice = request.tool_choice
    is_single = not isinstance(choice, NoChoice | None) and choice.disable_parallel_tool_use
    form = request.output_config.format if request.output_config else None
    return ChatRequest(
        messages=turns,
        continue_final_message=goes_on or None,
        tools=[
            function_tool(
                i,
                tool.name,
                tool.description,
                must_be(tool.input_schema, f"tools[{i}].input_schema", "object"),
                tool.strict,
            )
            for i, tool in enumerate(request.tools or ())
        ],
        tool_choice=tool_choice(request),
        parallel_tool_calls=False if is_single else None,
        chat_template_kwargs=template_kwargs(request),
        chat_template_name=request.chat_template_name,
        response_format=JsonSchemaFormat(json_schema=JsonSchema(schema=form.schema))
        if form
        else None,
    )


def tool_choice(request: PromptFields) -> Any:
    """`tool_choice` in the form of chat completions."""
    match request.tool_choice:
        case AnyChoice():
            return "required"
        case ToolChoice(name=name):
            return NamedTool(type="function", function=FunctionName(name))
        case NoChoice():
            return "none"
    return None


def template_kwargs(request: PromptFields) -> Raw:
    """Chat template variables for `thinking` and `effort`, named as published templates name them.

    The request's own `chat_template_kwargs` take precedence.
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
    """Whether the prompt fits and only `max_tokens` exceeds the context."""
    return error.code == "context_length_exceeded" and error.param == "max_tokens"


def renamed(error: RefusedError) -> RefusedError:
    """The error with this endpoint's field names instead of the chat's."""
    param, message = error.param or "", error.message
    for old, new in RENAMED.get(WORD.split(param, 1)[0], ()):
        param, message = param.replace(old, new), message.replace(old, new)
    if error.code == "context_length_exceeded" and param == "messages":
        # Agents look for this phrase and then shorten the conversation.
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
    """The parts of a message that are known before its content."""

    def __init__(self, caller: Caller) -> None:
        self.chunked = caller.chunked
        """Whether a stream's events need chunk framing."""
        self.fills_context = False
        """Whether `max_tokens` was cut to the rest of the context."""
        self._id, self._model = caller.response_id, caller.model

    def message(
        self, content: list[dict[str, Any]], end: dict[str, Any], usage: dict[str, Any]
    ) -> dict[str, Any]:
        """The whole message; `end` is the result of `stop`."""
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
        """The stop reason; `cause` is the stop text or token id that ended the answer, if any."""
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
    """A chat's usage in Anthropic's format, whose input tokens exclude cached ones.

    `num_thinking` is the token count of the thinking text. Tokenizing that text again may give a
    few tokens more than the model generated.
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
    """A call's arguments as JSON; an empty object if the token limit cut them off."""
    try:
        return msgspec.json.decode(arguments, type=Raw) if arguments else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
