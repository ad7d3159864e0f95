"""[1] Builds the core's document from a parsed request. Any thread, no I/O.

Checks rules that involve several fields, and parts that stay JSON text (raw.py). Every field of
protocol.py is either used here or documented there as having no effect.
"""

import operator
from typing import Any, Literal

from msgspec import Raw, Struct

from ingle.fields import LIMITS, PLAIN, JsonLogitBias, StopTokenIds
from ingle.generation import (
    Chat,
    ChatPrompt,
    GenerationRequest,
    Output,
    Prompt,
    Sampling,
    TextPrompt,
    TokenPrompt,
    Trace,
)
from ingle.server import raw, structured
from ingle.server.protocol import (
    ChatRequest,
    CompletionRequest,
    SamplingFields,
    StreamOptions,
    TokenizeChatRequest,
)
from ingle.server.protocol_fields import MOST_PROMPTS, Stop
from ingle.server.protocol_messages import FunctionCall, Message, Parts, RefusalPart
from ingle.server.raw import given, refused


class Caller(Struct, frozen=True):
    """Properties of a request that come from the connection, not the body."""

    tenant: str
    response_id: str
    created: int
    chunked: bool
    """Whether the client speaks HTTP/1.1, so that events need chunk framing."""
    model: str
    vocab_size: int = 2**31
    """The core checks token ids, but knows only one of the fields that they come in."""
    trace: Trace | None = None
    session: str | None = None
    """The client's X-Session-Affinity, where there are several engines to choose from."""


def completion(request: CompletionRequest, caller: Caller) -> GenerationRequest:
    """The document for /v1/completions."""
    document = generation(request, caller, "completion")
    document.prompts = prompts(request.prompt, request.add_special_tokens)
    document.max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    document.sampling.logprobs = None if request.logprobs is False else request.logprobs
    document.output.echo = bool(request.echo)
    return document


def chat(request: ChatRequest, caller: Caller) -> GenerationRequest:
    """The document for /v1/chat/completions."""
    document = generation(request, caller, "chat")
    document.prompts = [chat_prompt(request)]
    # Absent means the rest of the context, which the core knows.
    document.max_tokens = request.max_completion_tokens or request.max_tokens
    if request.logprobs:
        document.sampling.logprobs = request.top_logprobs or 0
    elif request.top_logprobs:
        raise refused("top_logprobs", "needs logprobs: true")
    return document


def generation(
    request: SamplingFields, caller: Caller, form: Literal["completion", "chat"]
) -> GenerationRequest:
    """The part that both endpoints share. The caller adds the prompts."""
    options = request.stream_options
    if options is not None and not request.stream and asks(options):
        raise refused("stream_options", "only allowed with stream: true")
    if request.prompt_logprobs is not None and request.stream:
        raise refused("prompt_logprobs", "not available with stream: true")
    stop, stop_ids = stops(request, caller.vocab_size)
    copied = {}
    for name in COPIED:  # A comprehension would be a call.
        value = getattr(request, name)
        if value is not None:
            copied[name] = value
    return GenerationRequest(
        prompts=[],
        **copied,
        sampling=sampling(request),
        stop=stop,
        stop_token_ids=stop_ids,
        tenant=caller.tenant,
        cache_salt=request.cache_salt or None,
        session=caller.session,
        trace=caller.trace,
        grammar=structured.grammar(request),
        output=Output(
            format=form,
            stream=bool(request.stream),
            chunked=bool(request.stream) and caller.chunked,
            response_id=caller.response_id,
            model=caller.model,
            created=caller.created,
            include_usage=options is not None and bool(options.include_usage),
            continuous_usage_stats=options is not None and bool(options.continuous_usage_stats),
            return_token_ids=bool(request.return_token_ids),
        ),
    )


COPIED = [
    name
    for name in GenerationRequest.__struct_fields__
    if name in SamplingFields.__struct_fields__
    and name not in ("cache_salt", "stop", "stop_token_ids")
]
"""Fields that the document takes as the body has them; it has a default for those that are null."""


def asks(options: StreamOptions) -> bool:
    """Whether any option is on."""
    return bool(options.include_usage or options.continuous_usage_stats)


def sampling(request: SamplingFields) -> Sampling:
    """The sampling part of the document."""
    bias = given(request.logit_bias)
    allowed = given(request.allowed_token_ids)
    if allowed is not None:
        raw.ids(allowed, "allowed_token_ids")
    return Sampling(
        *plain_values(request),
        seed=request.seed,
        logit_bias=raw.decoded(bias, JsonLogitBias, "logit_bias", SMALL_BYTES) if bias else {},
        allowed_token_ids=allowed,
        prompt_logprobs=request.prompt_logprobs,
    )


def stops(request: SamplingFields, vocab_size: int) -> tuple[list[str], list[int]]:
    """Stop strings and stop token ids. `stop` may contain ids too."""
    given_ids, found = given(request.stop_token_ids), given(request.stop)
    ids: list[int] = []
    if given_ids:
        ids = raw.decoded(given_ids, StopTokenIds, "stop_token_ids", SMALL_BYTES)
    stop: Any = raw.decoded(found, Stop, "stop", STOP_BYTES) if found else []
    if isinstance(stop, str):
        return [stop], ids
    seen = set(ids)
    for i, entry in enumerate(stop):
        if isinstance(entry, str) or entry in seen:
            continue
        if entry >= vocab_size:
            raise refused(
                f"stop[{i}]", f"token id {entry} is outside the vocabulary of {vocab_size}"
            )
        if len(ids) == LIMITS.stop_token_ids:
            reason = f"more than {LIMITS.stop_token_ids} token ids, stop_token_ids included"
            raise refused(f"stop[{i}]", reason)
        ids.append(entry)
        seen.add(entry)
    texts = [entry for entry in stop if isinstance(entry, str)]
    if len(texts) > LIMITS.stops:
        allowed = f"a list of at most {LIMITS.stops} strings"
        raise refused("stop", f"must be {allowed}, not {len(texts)} strings")
    return texts, ids


def prompts(prompt: Raw, add_special_tokens: bool | None, field: str = "prompt") -> list[Prompt]:
    """OpenAI's four forms: text, texts, token ids, lists of token ids."""
    add = add_special_tokens is not False
    if raw.kind(raw.must_be(prompt, field, "string", "array")) == "string":
        return [TextPrompt(prompt, add)]
    first = raw.first_of_list(prompt)
    if first == b"]":
        raise refused(field, "an empty list holds no prompt")
    if first not in b'"[':
        return [TokenPrompt(raw.ids(prompt, field))]
    several = raw.entries(prompt, field, MOST_PROMPTS)
    if len({raw.kind(entry) for entry in several}) > 1:
        raise refused(field, "texts, token ids and lists of token ids cannot be mixed")
    if first == b'"':
        return [TextPrompt(text, add) for text in several]
    return [TokenPrompt(raw.ids(ids, f"{field}[{i}]")) for i, ids in enumerate(several)]


def chat_prompt(request: ChatRequest | TokenizeChatRequest) -> ChatPrompt:
    """The chat template's input."""
    continues = bool(request.continue_final_message)
    if continues and request.add_generation_prompt:
        raise refused("continue_final_message", "cannot be true along with add_generation_prompt")
    with_choice = request if isinstance(request, ChatRequest) else None
    effort = with_choice.reasoning_effort if with_choice else None
    is_off = effort == "none"
    kwargs = template_kwargs(given(request.chat_template_kwargs), is_off)
    if effort is not None and "reasoning_effort" in kwargs:
        raise refused("chat_template_kwargs.reasoning_effort", "reasoning_effort is given too")
    return ChatPrompt(
        Chat(
            messages=[message(m, f"messages[{i}]") for i, m in enumerate(request.messages)],
            tools=structured.tools(request.tools),
            tool_choice=structured.tool_choice(with_choice) if with_choice else None,
            parallel_tool_calls=not with_choice or with_choice.parallel_tool_calls is not False,
            add_generation_prompt=not continues and request.add_generation_prompt is not False,
            continue_final_message=continues,
            reasoning_off=is_off,
            reasoning_effort=None if is_off else effort,
            template_name=request.chat_template_name,
            template_kwargs=kwargs,
        )
    )


def message(turn: Message, place: str) -> dict[str, Any]:
    """One message, as templates expect it."""
    result: dict[str, Any] = {
        # Templates know four roles. OpenAI has other names for two of them.
        "role": ROLES.get(turn.role, turn.role),
        "content": content(turn, place),
    }
    if turn.name is not None:
        result["name"] = turn.name
    if turn.tool_calls:
        result["tool_calls"] = [
            tool_call(call.id, call.function, f"{place}.tool_calls[{i}].function")
            for i, call in enumerate(turn.tool_calls)
        ]
    elif turn.function_call is not None:
        result["tool_calls"] = [tool_call(None, turn.function_call, f"{place}.function_call")]
    if turn.tool_call_id is not None:
        result["tool_call_id"] = turn.tool_call_id
    for name in ("reasoning_content", "reasoning"):
        reasoning = given(getattr(turn, name))
        if reasoning is not None and reasoning != EMPTY_TEXT:
            result["reasoning_content"] = raw.must_be(reasoning, f"{place}.{name}", "string")
            break
    return result


def content(turn: Message, place: str) -> Raw:
    """A message's text: a string, or joined parts. An assistant's may be a refusal."""
    found, of_message, place = given(turn.content), place, f"{place}.content"
    if found is None:
        if turn.role != "assistant":
            raise refused(place, f"a message of role {turn.role} needs content")
        refusal = given(turn.refusal)
        if refusal is None:
            return EMPTY_TEXT
        return raw.must_be(refusal, f"{of_message}.refusal", "string")
    if raw.kind(raw.must_be(found, place, "string", "array", "null")) == "string":
        return found
    texts = []
    for i, part in enumerate(raw.text_parts(found, Parts, place)):
        if isinstance(part, RefusalPart):
            texts.append(raw.must_be(part.refusal, f"{place}[{i}].refusal", "string"))
        else:
            texts.append(raw.must_be(part.text, f"{place}[{i}].text", "string"))
    return raw.joined(texts)


def tool_call(call_id: str | None, function: FunctionCall, place: str) -> dict[str, Any]:
    """A call of an earlier answer, as templates expect it."""
    called = {"name": function.name, "arguments": arguments(given(function.arguments), place)}
    return {"id": call_id, "type": "function", "function": called}


def arguments(value: Raw | None, place: str) -> Raw:
    """Arguments as a mapping, which templates can iterate over or dump. A bad string stays."""
    if value is None:
        return EMPTY_TEXT
    found = raw.must_be(value, f"{place}.arguments", "string", "object")
    if raw.kind(found) == "object":
        return found
    # Values that the core's document cannot hold, such as lone surrogates, stay a string.
    return raw.object_in_text(raw.text_of(found)) or found


def template_kwargs(variables: Raw | None, reasoning_off: bool = False) -> dict[str, Raw]:
    """Variables for the template. Names that we or the template language own are refused.

    `reasoning_off` sets the two variables that published templates use for it.
    """
    found: dict[str, Raw] = {}
    if variables is not None:
        found = raw.decoded(variables, dict[str, Raw], "chat_template_kwargs")
    for name in found:
        if name in RESERVED_KWARGS:
            raise refused(f"chat_template_kwargs.{name[:64]}", "the name is reserved")
    for name in ("enable_thinking", "thinking") if reasoning_off else ():
        if bytes(found.get(name, FALSE)) != b"false":
            reason = "must be false, or absent, where reasoning_effort is none"
            raise refused(f"chat_template_kwargs.{name}", reason)
        found[name] = FALSE
    return found


plain_values = operator.attrgetter(*PLAIN)
"""The plain sampling fields of a request, in their order."""
DEFAULT_MAX_TOKENS = 16  # OpenAI's default on completions.
SMALL_BYTES = 1 << 16
"""Longest JSON text of a part with few entries, white space included."""
STOP_BYTES = 1 << 20
"""The same of `stop`: 64 texts of 1,024 characters, each of up to twelve bytes, and the ids."""
EMPTY_TEXT = Raw(b'""')
FALSE = Raw(b"false")
ROLES = {"developer": "system", "function": "tool"}
RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "chat_template",
        "continue_final_message",
        "documents",
        "eos_token",
        "messages",
        "tokenize",
        "tokenizer",
        "tools",
    }
)
