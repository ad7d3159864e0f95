"""[1] [8] POST /v1/responses: translates the request to a chat and the chat's answer to a response.

Event loop, no I/O. The core only speaks the format of chat completions. The translation costs some
50 us per token; use chat completions where CPU time matters.
"""

import re
import time
from typing import Any

from msgspec import Raw, Struct

from ingle.errors import RefusedError
from ingle.server.convert import EMPTY_TEXT, Caller
from ingle.server.protocol import (
    AnswerFields,
    ChatRequest,
    CommonFields,
    FunctionName,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    NamedTool,
    StreamOptions,
)
from ingle.server.protocol_messages import FunctionCall, Message, ToolCall
from ingle.server.protocol_responses import (
    InputItem,
    InputItems,
    JsonObjectText,
    JsonSchemaText,
    Parts,
    ResponsesRequest,
    ResponseToolChoice,
)
from ingle.server.random_hex import random_hex
from ingle.server.raw import ABSENT, decoded, given, joined, kind, must_be, refused, text_parts
from ingle.server.structured import function_tool

LOGPROBS = "message.output_text.logprobs"
WORD = re.compile(r"[.\[]")
RENAMED = {
    "max_tokens": [("max_tokens", "max_output_tokens"), ("messages", "input")],
    "response_format": [("response_format", "text.format")],
    "tools": [("].function.", "].")],
    "reasoning_effort": [("reasoning_effort", "reasoning.effort")],
}
"""What is called otherwise in errors about a field, by that field."""
SAME_FIELDS = (
    *AnswerFields.__struct_fields__[len(CommonFields.__struct_fields__) :],
    "priority",
    "cache_salt",
    "chat_template_kwargs",
    "chat_template_name",
    "parallel_tool_calls",
)
"""What a chat has under the same name: the fields of all that asks for text, and some more."""


def chat_request(request: ResponsesRequest) -> ChatRequest:
    """The chat that asks the same."""
    wants_logprobs = LOGPROBS in (request.include or ())
    if request.top_logprobs is not None and request.top_logprobs > 0 and not wants_logprobs:
        raise refused("top_logprobs", f"needs {LOGPROBS} in include")
    named = request.tool_choice
    choice = (
        NamedTool(type="function", function=FunctionName(named.name))
        if isinstance(named, ResponseToolChoice)
        else named
    )
    return ChatRequest(
        messages=messages(request),
        max_completion_tokens=request.max_output_tokens,
        logprobs=wants_logprobs or None,
        top_logprobs=request.top_logprobs if wants_logprobs else None,
        response_format=response_format(request),
        tools=[
            function_tool(i, tool.name, tool.description, tool.parameters, tool.strict)
            for i, tool in enumerate(request.tools or ())
        ],
        tool_choice=choice,
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        stream_options=StreamOptions(include_usage=True) if request.stream else None,
        **{name: getattr(request, name) for name in SAME_FIELDS},
    )


def response_format(request: ResponsesRequest) -> JsonObjectFormat | JsonSchemaFormat | None:
    """`text.format` as chat completions know it."""
    given = request.text.format if request.text else None
    if isinstance(given, JsonObjectText):
        return JsonObjectFormat()
    if isinstance(given, JsonSchemaText):
        return JsonSchemaFormat(json_schema=JsonSchema(name=given.name, schema=given.schema))
    return None


def messages(request: ResponsesRequest) -> list[Message]:
    """The chat's messages: instructions first; calls and reasoning join their assistant message."""
    result: list[Message] = []
    instructions = given(request.instructions)
    if instructions is not None:
        system = must_be(instructions, "instructions", "string")
        result.append(Message(role="system", content=system))
    if kind(must_be(request.input, "input", "string", "array")) == "string":
        return [*result, Message(role="user", content=request.input)]
    reasoning: Raw | None = None
    for i, item in enumerate(decoded(request.input, InputItems, "input")):
        place = f"input[{i}]"
        if item.type == "reasoning":
            content = given(item.content)
            reasoning = text(content, f"{place}.content") if content else None
            continue
        if item.type == "function_call_output":
            output = needed(given(item.output), f"{place}.output")
            result.append(
                Message(
                    role="tool",
                    content=text(output, f"{place}.output"),
                    tool_call_id=needed(item.call_id, f"{place}.call_id"),
                )
            )
            continue
        turn = call(item, place, result) if item.type == "function_call" else message(item, place)
        if turn is not None:
            if turn.role == "assistant":
                turn.reasoning_content, reasoning = reasoning or ABSENT, None
            result.append(turn)
    return result


def message(item: InputItem, place: str) -> Message:
    """A message item."""
    role = needed(item.role, f"{place}.role")
    content = needed(given(item.content), f"{place}.content")
    return Message(role=role, content=text(content, f"{place}.content"))


def call(item: InputItem, place: str, before: list[Message]) -> Message | None:
    """A call as part of the assistant message `before` it; else a message of its own."""
    name = needed(item.name, f"{place}.name")
    arguments = must_be(given(item.arguments) or EMPTY_TEXT, f"{place}.arguments", "string")
    made = ToolCall(
        id=needed(item.call_id, f"{place}.call_id"),
        function=FunctionCall(name=name, arguments=arguments),
    )
    if before and before[-1].role == "assistant":
        turn = before[-1]
        turn.tool_calls = turn.tool_calls or []
        turn.tool_calls.append(made)
        return None
    return Message(role="assistant", tool_calls=[made])


def text(content: Raw, place: str) -> Raw:
    """Content as one text."""
    if kind(must_be(content, place, "string", "array")) == "string":
        return content
    texts = []
    for i, part in enumerate(text_parts(content, Parts, place)):
        field = "refusal" if part.type == "refusal" else "text"
        text = needed(given(getattr(part, field)), f"{place}[{i}].{field}")
        texts.append(must_be(text, f"{place}[{i}].{field}", "string"))
    return joined(texts)


def renamed(error: RefusedError, request: ResponsesRequest) -> RefusedError:
    """The error in the words of this endpoint: a chat's fields have other names here."""
    param = error.param or ""
    name = WORD.split(param, 1)[0]
    if name == "messages":
        # Two texts form one prompt; name the longer one.
        instructions, asked = given(request.instructions), memoryview(request.input).nbytes
        is_longer = instructions is not None and memoryview(instructions).nbytes > asked
        new = "instructions" if is_longer else "input"
        return RefusedError(error.message.replace(param, new), new, error.code, error.status)
    for old, new in RENAMED.get(name, ()):
        param, error.message = param.replace(old, new), error.message.replace(old, new)
    return RefusedError(error.message, param or None, error.code, error.status)


def needed(value: Any, place: str) -> Any:
    """Errors: RefusedError where it is None."""
    if value is None:
        raise refused(place, "the field is required")
    return value


class LogProbs(Struct):
    """Log-probs of a choice: an entry a token, passed on as it is."""

    content: list[Raw] = []


class ChatChoice(Struct):
    """The only choice of a whole chat answer."""

    message: dict[str, Any]
    finish_reason: str
    logprobs: LogProbs | None = None


class Chat(Struct):
    """A whole chat answer."""

    choices: list[ChatChoice]
    usage: dict[str, Any]


class Shape:
    """The parts of a response that are known before its text."""

    def __init__(
        self,
        request: ResponsesRequest,
        caller: Caller,
        defaults: dict[str, Any],
    ) -> None:
        plain = {"type": "text"}
        form = request.text.format if request.text else None
        choice = request.tool_choice
        self.chunked = caller.chunked
        """Whether a stream's events need chunk framing."""
        self.head: dict[str, Any] = {
            "id": caller.response_id,
            "object": "response",
            "created_at": caller.created,
            "model": caller.model,
            "background": False,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "metadata": request.metadata or {},
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {
                "effort": request.reasoning.effort if request.reasoning else None,
                "summary": None,
            },
            "service_tier": "default",
            "store": False,
            "temperature": defaults["temperature"]
            if request.temperature is None
            else request.temperature,
            "text": {"format": plain if form is None else form},
            "tool_choice": choice or "auto",
            "tools": request.tools or [],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": defaults["top_p"] if request.top_p is None else request.top_p,
            "truncation": "disabled",
        }

    def open(self) -> dict[str, Any]:
        """The response while nothing is known of its text."""
        return self._whole("in_progress", [], None, None)

    def ended(
        self, output: list[dict[str, Any]], finish_reason: str, usage: dict[str, Any]
    ) -> dict[str, Any]:
        """The whole response."""
        status = "incomplete" if finish_reason == "length" else "completed"
        return self._whole(status, output, None, usage)

    def failed(self, error: dict[str, Any]) -> dict[str, Any]:
        """The response of a request that failed after its first event."""
        reason = {"code": "server_error", "message": error.get("message", "")}
        return self._whole("failed", [], reason, None)

    def _whole(self, status: str, output: Any, error: Any, usage: Any) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        ends = {"completed_at": int(time.time())} if status == "completed" else {}
        return {
            **self.head,
            **ends,
            "status": status,
            "error": error,
            "incomplete_details": cut,
            "output": output,
            "usage": usage,
        }


def usage_of(usage: dict[str, Any], num_reasoning: int) -> dict[str, Any]:
    """A chat's usage in the new words.

    `num_reasoning` is the caller's count of the reasoning's text, which may have been fewer tokens
    when the model wrote it.
    """
    num_output = usage["completion_tokens"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": min(num_reasoning, num_output)},
        "total_tokens": usage["total_tokens"],
    }


def new_item(kind: str, **fields: Any) -> dict[str, Any]:
    """An output item that has just begun."""
    prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
    item: dict[str, Any] = {
        "id": f"{prefix}_{random_hex()}",
        "type": kind,
        "status": "in_progress",
    }
    match kind:
        case "message":
            item |= {"role": "assistant", "content": []}
        case "reasoning":
            item |= {"summary": [], "content": []}
        case _:
            item |= {"arguments": ""}
    return item | fields


def new_part(kind: str) -> dict[str, Any]:
    """An empty content part of an item."""
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def output_of(choice: ChatChoice) -> list[dict[str, Any]]:
    """The output items of a whole chat answer."""
    answer = choice.message
    status = "incomplete" if choice.finish_reason == "length" else "completed"
    items: list[dict[str, Any]] = []
    logprobs = choice.logprobs.content if choice.logprobs else []
    calls = answer.get("tool_calls") or ()
    for sort, said in (
        ("reasoning", answer.get("reasoning_content")),
        ("message", answer.get("content")),
    ):
        # Without any output the answer is one empty message.
        if said or (sort == "message" and not items and not calls):
            part = new_part(sort) | {"text": said or ""}
            if sort == "message":
                part["logprobs"] = logprobs
            items.append(new_item(sort, content=[part]))
    items += [
        new_item(
            "function_call",
            call_id=each["id"],
            name=each["function"]["name"],
            arguments=each["function"]["arguments"],
        )
        for each in calls
    ]
    for item in items:
        item["status"] = "completed"
    items[-1]["status"] = status
    return items
