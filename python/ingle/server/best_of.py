"""[1] best_of: generate more choices than requested and return the likeliest. Any thread.

As OpenAI defines it: the choices with the highest mean log-prob per token win, and usage counts
all.
"""

from ingle.generation import GenerationRequest
from ingle.server.protocol import CompletionRequest
from ingle.server.raw import refused


def widen(document: GenerationRequest, request: CompletionRequest) -> None:
    """Asks the core to generate `best_of` choices and to return the best `n`."""
    n, best_of = request.n or 1, request.best_of
    if best_of is None or best_of == n:
        return
    if best_of < n:
        raise refused("best_of", f"must be at least n: got best_of {best_of} and n {n}")
    if request.stream:
        # OpenAI refuses it as well.
        raise refused(
            "best_of",
            "must equal n in a stream, because the best answers are known only at the end",
        )
    document.n = best_of
    document.output.keep = n
