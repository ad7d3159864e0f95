"""[1] POST /v1/embeddings: its body, and the way to the core's document. Event loop, no I/O.

An embedding is the model's own final hidden state, of the prompt's last token or the mean of all,
scaled to length 1. The core writes the answer.
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw

from ingle.errors import RefusedError
from ingle.generation import GenerationRequest, Output, TextPrompt
from ingle.server.convert import Caller, prompts
from ingle.server.protocol import Labels
from ingle.server.protocol_fields import Anything, Prompt, ShortText
from ingle.server.raw import ABSENT, refused


class EmbeddingRequest(Labels, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/embeddings."""

    input: Prompt
    """Text, texts, token ids, or lists of token ids. Ids are used as they are."""
    model: Annotated[str, Meta(max_length=1024)] | None = None
    """Served model's name; absent means the one that is served."""
    encoding_format: Literal["float", "base64"] | None = None
    """base64 is of little-endian f32; absent means float."""
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Only the model's own number."""
    pooling: Literal["last", "mean"] | None = None
    """Hidden state of the last token (default), or the mean of all."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its start token; default true."""
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """Keeps only so many of the last tokens; -1: as many as fit."""
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """Lower runs first."""
    cache_salt: ShortText | None = None
    """Requests share cached prefixes only if this and the tenant are equal."""
    request_id: Annotated[str, Meta(max_length=256, pattern=r"^[\x21-\x7e]*$(?!\n)")] | None = None
    """Comes back as X-Request-Id; may repeat."""
    metadata: Anything = ABSENT
    """No effect."""


def embedding(request: EmbeddingRequest, caller: Caller, hidden_size: int) -> GenerationRequest:
    """The document for /v1/embeddings."""
    if request.dimensions not in (None, hidden_size):
        reason = f"the model's vectors have {hidden_size} numbers, not {request.dimensions}"
        raise refused("dimensions", reason)
    inputs = prompts(request.input, request.add_special_tokens, "input")
    for each in inputs:
        if isinstance(each, TextPrompt) and each.text == NOTHING:
            raise refused("input", "an empty text has no embedding")
    return GenerationRequest(
        prompts=inputs,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        priority=request.priority or 0,
        tenant=caller.tenant,
        cache_salt=request.cache_salt or None,
        output=Output(
            format="embedding",
            model=caller.model,
            pooling=request.pooling,
            base64=request.encoding_format == "base64",
        ),
    )


def renamed(error: RefusedError) -> RefusedError:
    """What others call a prompt is here an input."""
    if error.param != "prompt":
        return error
    message = error.message.replace("prompt", "input")
    return RefusedError(message, "input", error.code, error.status)


NOTHING = Raw(b'""')
