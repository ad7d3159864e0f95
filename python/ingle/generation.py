"""[1] The document of a generation request to the core; rust/engine/src/wire.rs defines it.

Any thread. Plain data: the writer checks values, and the core checks them again. Fields with their
default are left out of the JSON. What a client sent as JSON may stay JSON text (Raw).
"""

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Raw, Struct

from ingle import _core
from ingle.errors import RefusedError
from ingle.fields import plain_struct


class TextPrompt(Struct, omit_defaults=True):
    """Plain text; special tokens in it stay text."""

    text: str | Raw
    add_special_tokens: bool = True


class TokenPrompt(Struct):
    """Token ids, used as they are."""

    token_ids: list[int] | Raw


class Function(Struct, omit_defaults=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | Raw | None = None
    strict: bool = False


class Tool(Struct):
    """A tool; functions are the only kind."""

    function: Function


class ChosenFunction(Struct):
    """The name of the function that must be called."""

    function: str


class Chat(Struct, omit_defaults=True):
    """Input of the model's chat template."""

    messages: list[dict[str, Any]]
    tools: list[Tool] = []
    tool_choice: Literal["auto", "none", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    reasoning_off: bool = False
    reasoning_effort: str | None = None
    template_name: str | None = None
    """None: `tool_use` with tools if the model has it, else `default`."""
    template_kwargs: dict[str, Any] = {}


class ChatPrompt(Struct):
    """Messages that the chat template turns into a prompt."""

    chat: Chat


Prompt = TextPrompt | TokenPrompt | ChatPrompt


if TYPE_CHECKING:

    class PlainValues(Struct, omit_defaults=True):
        """The plain sampling fields, in their order; see `SAMPLING_FIELDS` of the core."""

        def __init__(self, *values: float | None, **others: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    PlainValues = plain_struct(
        "PlainValues",
        "The plain sampling fields, in their order; see `SAMPLING_FIELDS` of the core.",
        Struct,
        checked=False,
        omit_defaults=True,
    )


class Sampling(PlainValues, omit_defaults=True, kw_only=True):
    """How tokens are chosen; None takes the model's default."""

    seed: int | None = None
    logit_bias: dict[str, float] = msgspec.field(default_factory=dict)
    allowed_token_ids: list[int] | Raw | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class Grammar(Struct, omit_defaults=True, kw_only=True):
    """What answers must match: the one value that belongs to `kind`."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "lark"]
    field: str
    """The client's name of it, for errors."""
    schema: Any = None
    regex: str | None = None
    choices: list[str] | list[Raw] | None = None
    lark: str | None = None


class Output(Struct, omit_defaults=True, kw_only=True):
    """The form of the answer."""

    format: Literal["completion", "chat", "delta", "embedding"]
    stream: bool = False
    chunked: bool = False
    response_id: str = ""
    model: str | None = None
    created: int = 0
    include_usage: bool = False
    continuous_usage_stats: bool = False
    echo: bool = False
    keep: int | None = None
    """How many choices of each prompt to return, the likeliest first; None: all."""
    return_token_ids: bool = False
    pooling: Literal["mean", "last"] | None = None
    base64: bool = False


class Trace(Struct, omit_defaults=True):
    """The sampled W3C trace that a request belongs to."""

    id: str
    report: bool = False
    """Whether the core reports TIMES."""


class GenerationRequest(Struct, omit_defaults=True, kw_only=True):
    """One request: one or more prompts, `n` choices each."""

    prompts: list[Prompt]
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    priority: int = 0
    tenant: str = ""
    cache_salt: str | None = None
    session: str | None = None
    """Requests of one session go to one engine, where there are several."""
    trace: Trace | None = None
    bad_words: list[str] = []
    grammar: Grammar | None = None
    output: Output


def is_slow_to_submit(document: GenerationRequest) -> bool:
    """Whether the core may compile a grammar or bad words for it: never on an event loop."""
    bound = document.grammar is not None or bool(document.bad_words)
    return bound or any(
        isinstance(prompt, ChatPrompt) and prompt.chat.tools for prompt in document.prompts
    )


check_body = _core.check_body
"""Refuses JSON that is broken, has a key twice or holds too much to read at once."""
check_ids = _core.check_ids
"""Refuses JSON that is not a list of token ids."""


def _refuse(value: object) -> Any:
    raise RefusedError(f"a value of type {type(value).__name__} has no form in JSON")


encode = msgspec.json.Encoder(enc_hook=_refuse).encode
"""Writes a document of this module as JSON bytes."""


class EncodedRequest(Struct, frozen=True):
    """A request on its way to the core."""

    document: bytes
    stream: bool
    chunked: bool
    is_slow: bool
    """Whether `submit` may take longer than an event loop can wait."""
    tenant: str = ""
    answer_bytes: int = 0
    """Memory that an answer with log-probs may take; 0 for text, which is short, and streams."""


def encoded(request: GenerationRequest) -> EncodedRequest:
    """The request as the core reads it, and what its caller must know of it."""
    document = encode(request)
    is_slow = len(document) > INLINE_BYTES or is_slow_to_submit(request)
    output = request.output
    size = 0
    sampling = request.sampling
    if not (output.stream or sampling.logprobs is sampling.prompt_logprobs is None):
        size = answer_bytes(request, len(document))
    return EncodedRequest(document, output.stream, output.chunked, is_slow, request.tenant, size)


def answer_bytes(request: GenerationRequest, document_bytes: int) -> int:
    """About the most memory that log-probs take while an answer is put together."""
    sampling, entries = request.sampling, 0
    if sampling.logprobs is not None:
        num_tokens = LIKELY_TOKENS if request.max_tokens is None else request.max_tokens
        choices = len(request.prompts) * request.n
        entries += choices * num_tokens * (1 + sampling.logprobs)
    scored = sampling.logprobs if request.output.echo else sampling.prompt_logprobs
    if scored is not None:
        entries += document_bytes // BYTES_A_TOKEN * (1 + scored)
    return entries * BYTES_AN_ALTERNATIVE


LIKELY_TOKENS = 4096
"""The length of an answer for which no limit is given."""
BYTES_A_TOKEN = 2
"""Of a document, at least: a short id and its comma."""
BYTES_AN_ALTERNATIVE = 160
"""An alternative of a token is 60 bytes of JSON, and they are copied before they are sent."""
INLINE_BYTES = 16 << 10
"""A shorter document, without a grammar, is read and tokenised within a millisecond or so."""
