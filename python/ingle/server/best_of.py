"""[1] best_of: more choices than asked for, of which the likeliest are told. Any thread.

As OpenAI defines it: the choices with the highest mean log-prob a token; usage counts them all.
"""

from ingle.generation import GenerationRequest
from ingle.server.protocol import CompletionRequest
from ingle.server.raw import refused


def widen(document: GenerationRequest, request: CompletionRequest) -> None:
    """Asks the core for `best_of` choices, of which it tells the best `n`."""
    n, best_of = request.n or 1, request.best_of
    if best_of is None or best_of == n:
        return
    if best_of < n:
        raise refused("best_of", f"must be at least n, which is {n}, not {best_of}")
    if request.stream:
        # OpenAI refuses it as well.
        raise refused("best_of", "what is best is known at the end: only equal to n in a stream")
    document.n = best_of
    document.output.keep = n
