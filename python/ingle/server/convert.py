"""[1] From a checked request to the core's document: the checks that need more than one field.

Event loop, no I/O. Every field of protocol.py is used here or documented there as without effect.
"""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ingle.errors import RefusedError
from ingle.generation import (
    Chat,
    ChatPrompt,
    GenerationRequest,
    Output,
    Prompt,
    Sampling,
    TextPrompt,
    TokenPrompt,
)
from ingle.server import structured
from ingle.server.protocol import (
    ChatRequest,
    CompletionRequest,
    Message,
    SamplingFields,
    TokenizeChatRequest,
)


@dataclass(frozen=True, slots=True)
class Caller:
    """What the connection, not the body, says about a request."""

    tenant: str
    response_id: str
    created: int
    chunked: bool
    """Whether the client speaks HTTP/1.1, so that events need chunk framing."""
    model: str


def completion(request: CompletionRequest, caller: Caller) -> GenerationRequest:
    """The document for /v1/completions."""
    document = generation(request, caller, "completion")
    document.prompts = prompts(request.prompt, request.add_special_tokens)
    document.max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    document.sampling.logprobs = request.logprobs
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
    """The part that both endpoints share; prompts are added by the caller."""
    options = request.stream_options
    if options is not None and not request.stream:
        raise refused("stream_options", "only allowed with stream: true")
    stop = request.stop
    return GenerationRequest(
        prompts=[],
        n=request.n or 1,
        min_tokens=request.min_tokens or 0,
        sampling=sampling(request),
        stop=[stop] if isinstance(stop, str) else stop or [],
        stop_token_ids=request.stop_token_ids or [],
        ignore_eos=bool(request.ignore_eos),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        priority=request.priority or 0,
        tenant=caller.tenant,
        cache_salt=request.cache_salt or None,
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


def sampling(request: SamplingFields) -> Sampling:
    """How tokens are chosen; a top_k of -1 becomes 0, off in the core."""
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=0 if request.top_k == -1 else request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=request.seed,
        logit_bias=request.logit_bias or {},
        allowed_token_ids=request.allowed_token_ids,
    )


def prompts(prompt: Any, add_special_tokens: bool | None) -> list[Prompt]:
    """OpenAI's four forms: text, texts, token ids, lists of token ids."""
    add = add_special_tokens is not False
    if isinstance(prompt, str):
        return [TextPrompt(prompt, add)]
    if not prompt:
        raise refused("prompt", "an empty list holds no prompt")
    kind = type(prompt[0])
    if any(type(item) is not kind for item in prompt):
        raise refused("prompt", "texts, token ids and lists of token ids cannot be mixed")
    if kind is int:
        return [TokenPrompt(prompt)]
    if len(prompt) > MOST_PROMPTS:
        raise refused("prompt", f"{len(prompt)} prompts in one request; at most {MOST_PROMPTS}")
    if kind is str:
        return [TextPrompt(text, add) for text in prompt]
    return [TokenPrompt(ids) for ids in prompt]


def chat_prompt(request: ChatRequest | TokenizeChatRequest) -> ChatPrompt:
    """The chat template's input."""
    continues = bool(request.continue_final_message)
    if continues and request.add_generation_prompt:
        raise refused("continue_final_message", "cannot be true along with add_generation_prompt")
    with_choice = request if isinstance(request, ChatRequest) else None
    return ChatPrompt(
        Chat(
            messages=[message(m, f"messages[{i}]") for i, m in enumerate(request.messages)],
            tools=structured.tools(request.tools),
            tool_choice=structured.tool_choice(with_choice) if with_choice else None,
            parallel_tool_calls=not with_choice or with_choice.parallel_tool_calls is not False,
            add_generation_prompt=not continues and request.add_generation_prompt is not False,
            continue_final_message=continues,
            template_kwargs=template_kwargs(request.chat_template_kwargs or {}),
        )
    )


def message(given: Message, place: str) -> dict[str, Any]:
    """One message as templates know it."""
    content = given.content
    if content is None:
        if given.role != "assistant":
            raise refused(f"{place}.content", f"a message of role {given.role} needs content")
        content = ""
    elif isinstance(content, list):
        content = "\n".join(part.text for part in content)
    result: dict[str, Any] = {
        # Templates of the models we run know four roles; OpenAI's newer name means the first.
        "role": "system" if given.role == "developer" else given.role,
        "content": content,
    }
    if given.tool_calls:
        result["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {
                    "name": call.function.name,
                    "arguments": arguments(call.function.arguments),
                },
            }
            for call in given.tool_calls
        ]
    if given.tool_call_id is not None:
        result["tool_call_id"] = given.tool_call_id
    reasoning = given.reasoning_content or given.reasoning
    if reasoning is not None:
        result["reasoning_content"] = reasoning
    return result


def arguments(given: str | dict[str, Any]) -> str | dict[str, Any]:
    """Templates iterate over arguments or dump them: a mapping serves both, a bad string stays."""
    if isinstance(given, dict):
        return given
    try:
        # Not Python's decoder: it takes lone surrogates, which the core's document cannot hold.
        decoded = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError):
        return given
    return decoded if isinstance(decoded, dict) else given


def template_kwargs(given: dict[str, Any]) -> dict[str, Any]:
    """Variables for the template; those that we or the template language own are refused."""
    for name in given:
        if name in RESERVED_KWARGS:
            raise refused(f"chat_template_kwargs.{name[:64]}", "the name is reserved")
    return given


def refused(field: str, reason: str) -> RefusedError:
    """A 400 that names the field."""
    return RefusedError(f"{field}: {reason}", field, "invalid_value")


DEFAULT_MAX_TOKENS = 16  # OpenAI's default on completions.
MOST_PROMPTS = 2048
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
