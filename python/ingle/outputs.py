"""Inputs and outputs of the Python API: prompts, deltas, whole answers. Plain data."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

PromptLike = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages (`{"role": .., "content": ..}`)."""


class Usage(Struct, frozen=True):
    """Token counts of one request. `completion_tokens` is the sum over its choices."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class TokenLogprob(Struct, frozen=True):
    """Raw log-probs of the model at one token of the answer."""

    token_id: int
    logprob: float | None
    rank: int
    """1 for the model's first choice."""
    top: list[tuple[int, float]]
    """(id, log-prob) of the requested alternatives, best first."""


class Delta(Struct, frozen=True):
    """What one step added to one choice of a streamed request."""

    request_id: int
    """For `Engine.abort`; unique within the engine."""
    index: int
    """Which of the `n` choices this is."""
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    """`stop`, `length`, `content_filter` or `abort` in a choice's last delta, else None."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended the choice."""
    usage: Usage | None = None
    """In the request's last delta."""


class Completion(Struct):
    """One finished choice."""

    index: int
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class RequestOutput(Struct):
    """The answer to one prompt: its `n` choices and their token counts."""

    prompt: PromptLike
    outputs: list[Completion]
    usage: Usage | None = None
