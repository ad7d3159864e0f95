"""[1] POST /v1/embeddings: the body, and its conversion to the core's document.

Event loop, no I/O. An embedding is the final hidden state of the prompt's last token, or the mean
over all tokens, scaled to length 1. If the model has sentence-transformers files, they decide. The
core writes the response body.
"""

from typing import Annotated, Literal

from msgspec import Raw

from ingle.errors import RefusedError
from ingle.fields import INT32, TruncatePromptTokens, about
from ingle.generation import GenerationRequest, Output, TextPrompt
from ingle.server.convert import Caller, prompts
from ingle.server.protocol import CommonFields
from ingle.server.protocol_fields import AddSpecialTokens, NoEffect, Prompt
from ingle.server.raw import ABSENT, kind, refused


class EmbeddingRequest(CommonFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/embeddings."""

    input: Prompt
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        about("base64 encodes little-endian f32. Default: float."),
    ] = None
    dimensions: Annotated[int, about("Must be the model's own size.", ge=1, le=INT32)] | None = None
    pooling: Annotated[
        Literal["last", "mean"] | None,
        about("Hidden state of the last token, or the mean of all. Default: the model's own."),
    ] = None
    add_special_tokens: AddSpecialTokens | None = None
    truncate_prompt_tokens: TruncatePromptTokens | None = None
    metadata: NoEffect = ABSENT


def embedding(request: EmbeddingRequest, caller: Caller, hidden_size: int) -> GenerationRequest:
    """The document for /v1/embeddings."""
    if request.dimensions not in (None, hidden_size):
        reason = f"the model's vectors have {hidden_size} numbers, not {request.dimensions}"
        raise refused("dimensions", reason)
    inputs = prompts(request.input, request.add_special_tokens, "input")
    is_list = kind(request.input) == "array"
    for i, each in enumerate(inputs):
        if isinstance(each, TextPrompt) and each.text == NOTHING:
            raise refused(f"input[{i}]" if is_list else "input", "an empty text has no embedding")
    return GenerationRequest(
        prompts=inputs,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        priority=request.priority or 0,
        tenant=caller.tenant,
        cache_salt=request.cache_salt or None,
        session=caller.session,
        trace=caller.trace,
        output=Output(
            format="embedding",
            model=caller.model,
            pooling=request.pooling,
            base64=request.encoding_format == "base64",
        ),
    )


def renamed(error: RefusedError) -> RefusedError:
    """What others call a prompt is here an input."""
    param = error.param or ""
    if param.split("[")[0] != "prompt":
        return error
    message = error.message.replace("prompt", "input")
    return RefusedError(message, param.replace("prompt", "input"), error.code, error.status)


NOTHING = Raw(b'""')
