"""[1] Unknown fields, anywhere in a body: finds those that may be dropped.

Any thread. Runs only for a body with such a field. Walks along the types of protocol.py, including
parts that stay JSON text and whose type is known (`extra` of a Meta). Makes no object of other
parts.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, inspect

from ingle.faults import type_info
from ingle.server.embeddings import EmbeddingRequest
from ingle.server.protocol import ChatRequest, CompletionRequest
from ingle.server.protocol_anthropic import MessagesRequest
from ingle.server.protocol_responses import ResponsesRequest
from ingle.server.raw import kind

MayGo = Callable[[str, str, Raw], bool]
"""Whether a field may be dropped: path of its object, name, value."""


def without_unknown(value: Raw, shape: Any, may_go: MayGo) -> Raw:
    """The value without unknown fields that may be dropped; the value itself without any."""
    return walk(value, type_info(shape), "", may_go)


def walk(value: Raw, expected: inspect.Type, place: str, may_go: MayGo) -> Raw:
    """The same for the part of a body at `place`, for example `messages[0]`."""
    match kind(value):
        case "object":
            return in_object(value, expected, place, may_go)
        case "array":
            return in_list(value, expected, place, may_go)
    return value


def in_object(value: Raw, expected: inspect.Type, place: str, may_go: MayGo) -> Raw:
    """An object that may be a struct."""
    structs = [each for each in flat(expected) if isinstance(each, inspect.StructType)]
    if not structs:
        return value
    found = FIELDS.decode(value)
    fits = next((each for each in structs if has_tag(each, found)), None)
    if fits is None:
        return value  # The types will report what is wrong.
    known = {field.encode_name: field.type for field in fits.fields}
    changed = False
    for name, part in list(found.items()):
        if name == fits.tag_field:
            continue
        if name not in known:
            if may_go(place, name, part):
                del found[name]
                changed = True
            continue
        below = walk(part, known[name], f"{place}.{name}" if place else name, may_go)
        if below is not part:
            found[name] = below
            changed = True
    return Raw(msgspec.json.encode(found)) if changed else value


def in_list(value: Raw, expected: inspect.Type, place: str, may_go: MayGo) -> Raw:
    """A list that may hold structs."""
    items = [each.item_type for each in flat(expected) if isinstance(each, inspect.ListType)]
    items = [item for item in items if any(isinstance(each, NESTED) for each in flat(item))]
    if not items:
        return value
    found = LIST.decode(value)
    below = [walk(part, items[0], f"{place}[{i}]", may_go) for i, part in enumerate(found)]
    if all(new is old for new, old in zip(below, found, strict=True)):
        return value
    return Raw(msgspec.json.encode(below))


def flat(expected: inspect.Type) -> Iterator[inspect.Type]:
    """The alternatives of a type, without their metadata."""
    match expected:
        case inspect.Metadata(type=inner, extra=extra):
            if extra and "shape" in extra:
                yield from flat(type_info(extra["shape"]))
            else:
                yield from flat(inner)
        case inspect.UnionType(types=several):
            for each in several:
                yield from flat(each)
        case _:
            yield expected


def has_tag(struct: inspect.StructType, found: dict[str, Raw]) -> bool:
    """Whether the object's tag is this struct's, if the struct has a tag."""
    if struct.tag_field is None:
        return True
    tag = found.get(struct.tag_field)
    return tag is not None and tag == Raw(msgspec.json.encode(struct.tag))


NESTED = (inspect.StructType, inspect.ListType)
FIELDS = msgspec.json.Decoder(dict[str, Raw])
LIST = msgspec.json.Decoder(list[Raw])

ENDPOINTS = (CompletionRequest, ChatRequest, ResponsesRequest, MessagesRequest, EmbeddingRequest)


@functools.cache
def off_values() -> dict[str, tuple[object, ...]]:
    """ "Off" values by field: a type without the field accepts it with these values only.

    They come from all endpoints here and, in OFF_ELSEWHERE, from other servers.
    """
    found = dict(OFF_ELSEWHERE)
    for endpoint in ENDPOINTS:
        for field in msgspec.structs.fields(endpoint):
            known = found.get(field.encode_name, ())
            new = [off for off in off_of(type_info(field.type)) if not is_among(off, known)]
            if new:
                found[field.encode_name] = (*known, *new)
    return found


def is_among(value: object, values: tuple[object, ...]) -> bool:
    """Whether a value is one of these; a bool never equals a number, nor 1 1.0."""
    return any(value == each and type(value) is type(each) for each in values)


def off_of(given: inspect.Type) -> tuple[object, ...]:
    """The "off" values in a field's annotation; see `about` in ingle/fields.py."""
    match given:
        case inspect.Metadata(type=inner, extra=extra):
            extra = extra or {}
            if "off" in extra:
                return tuple(extra["off"])
            return off_of(type_info(extra["shape"]) if "shape" in extra else inner)
        case inspect.UnionType(types=several):
            return next((off for each in several if (off := off_of(each))), ())
    return ()


# Fields that no endpoint here has.
OFF_ELSEWHERE: dict[str, tuple[object, ...]] = {
    "access_programs": ({},),
    "audio": (),
    "chat_template": ("",),
    "context_management": ([],),
    "custom_logit_processor": ("",),
    "detokenize": (True,),
    "documents": ([],),
    "early_stopping": (False,),
    "ec_transfer_params": ({},),
    "embed_dtype": ("float32",),
    "enable_response_messages": (False,),
    "endianness": ("little", "native"),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_decoding_backend": ("auto",),
    "include_reasoning": (True,),
    "kv_transfer_params": ({},),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "no_stop_trim": (False,),
    "normalize": (True,),
    "previous_input_messages": ([],),
    "prompt_embeds": ([],),
    "return_hidden_states": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "separate_reasoning": (True,),
    "spaces_between_special_tokens": (True,),
    "stream_reasoning": (True,),
    "suffix": ("",),
    "thinking_token_budget": (-1,),
    "truncation_side": ("left",),
    "use_activation": (True,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
}
