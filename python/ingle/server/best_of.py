"""[1] [8] best_of: more choices than asked for, of which the likeliest are told. Event loop.

As OpenAI defines it: the choices with the highest mean log-prob a token; usage counts them all.
"""

from typing import Any

import msgspec

from ingle.generation import GenerationRequest
from ingle.server.convert import refused
from ingle.server.protocol import CompletionRequest


def widen(document: GenerationRequest, request: CompletionRequest) -> bool:
    """Asks the core for `best_of` choices; whether `narrow` must follow."""
    n, best_of = request.n or 1, request.best_of
    if best_of is None or best_of == n:
        return False
    if best_of < n:
        raise refused("best_of", f"must be at least n, which is {n}, not {best_of}")
    if request.stream:
        raise refused("best_of", "what is best is known at the end: only equal to n in a stream")
    if request.echo:
        raise refused("best_of", "above n it cannot be combined with echo")
    document.n = best_of
    document.sampling.logprobs = request.logprobs or 0
    return True


def narrow(body: bytes, request: CompletionRequest) -> bytes:
    """The core's answer with the best `n` choices of each prompt, best first."""
    answer: dict[str, Any] = msgspec.json.decode(body)
    n, best_of = request.n or 1, request.best_of or 1
    kept: list[dict[str, Any]] = []
    for first in range(0, len(answer["choices"]), best_of):
        ranked = sorted(answer["choices"][first : first + best_of], key=mean_log_prob, reverse=True)
        for choice in ranked[:n]:
            if request.logprobs is None:
                choice["logprobs"] = None
            kept.append(choice | {"index": len(kept)})
    return msgspec.json.encode(answer | {"choices": kept})


def mean_log_prob(choice: dict[str, Any]) -> float:
    """Of a choice without a token: none is likelier."""
    values: list[float] = (choice["logprobs"] or {}).get("token_logprobs") or [0.0]
    return sum(values) / len(values)
