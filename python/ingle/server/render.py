"""[2] /v1/completions/render and /v1/chat/completions/render: a request as token ids, not answered.

Event loop. Routers such as llm-d's endpoint picker ask for the token ids of a prompt, hash them and
look up which worker has them cached. The shape is vLLM's `GenerateRequest`.
"""

from collections.abc import Mapping
from typing import Any, get_type_hints

from ingle.fields import API_FIELDS, PLAIN
from ingle.generation import GenerationRequest, Sampling


def rendered(
    request: GenerationRequest, ids: list[int], number: int, info: Mapping[str, Any]
) -> dict[str, Any]:
    """One prompt of a request, with all that its generation needs."""
    output = request.output
    if request.truncate_prompt_tokens:
        ids = ids[-request.truncate_prompt_tokens :]
    several = len(request.prompts) > 1
    return {
        "request_id": f"{output.response_id}-{number}" if several else output.response_id,
        "token_ids": ids,
        "features": None,
        "sampling_params": sampling_params(request, len(ids), info),
        "model": output.model,
        "stream": output.stream,
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "kv_transfer_params": None,
    }


def sampling_params(
    request: GenerationRequest, num_prompt: int, info: Mapping[str, Any]
) -> dict[str, Any]:
    """The sampling fields under vLLM's names, the model's defaults filled in."""
    sampling, defaults = request.sampling, info["sampling_defaults"]
    left = max(0, info["max_model_len"] - num_prompt)
    values = {
        name: getattr(sampling if name in Sampling.__struct_fields__ else request, name)
        for name in RENDERED_FIELDS
    }
    values["max_tokens"] = left if request.max_tokens is None else request.max_tokens
    values["logit_bias"] = sampling.logit_bias or None
    for name, field in PLAIN.items():
        given = getattr(sampling, name)
        values[name] = defaults.get(name, field.default) if given is None else given
    return values


BESIDE = {"cache_salt", "priority", "truncate_prompt_tokens", *PLAIN}
"""Fields that are no sampling parameters of vLLM's, and those with a default of the model's."""
HINTS: Mapping[str, Any] = get_type_hints(GenerationRequest) | get_type_hints(Sampling)
"""The types of a document's fields."""
RENDERED_FIELDS = [
    name for name in (*API_FIELDS, "prompt_logprobs") if name in HINTS.keys() - BESIDE
]
"""The sampling parameters that a document holds as they are given."""
