"""[1] Parts of a body that stay JSON text: prompts, message texts, ids, schemas. Any thread.

The core reads them anyway, with the GIL released. As Python objects they would block the event
loop, whichever thread built them, because a decoder holds the GIL until it is done. The first
character shows the kind of a part; `check_body` has found it valid.
"""

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from ingle.content import check_media
from ingle.errors import RefusedError
from ingle.faults import described, fault_of
from ingle.fields import LIMITS
from ingle.generation import check_body, check_ids

T = TypeVar("T")

ABSENT: Any = None
"""Default of a part that may be missing; msgspec knows no union of Raw and None: null is JSON."""


def given(value: Raw | None) -> Raw | None:
    """None for a part that is absent or null."""
    return None if value is None or memoryview(value)[0] == NULL else value


def kind(value: Raw) -> str:
    """The JSON type."""
    return KINDS.get(memoryview(value)[0], "number")


def must_be(value: Raw, place: str, *kinds: str) -> Raw:
    """The value itself. Errors: RefusedError unless it is of one of these types."""
    found = kind(value)
    if found not in kinds:
        wanted = " or ".join(WORDS[each] for each in kinds if each != "null")
        raise refused(place, f"must be {wanted}, not {described(value)}")
    return value


def decoded(value: Raw, shape: type[T], place: str, most_bytes: int | None = None) -> T:
    """A part with few values, as Python objects. Errors: RefusedError names its field."""
    size = memoryview(value).nbytes
    if most_bytes is not None and size > most_bytes:
        raise refused(place, f"{size} bytes, at most {most_bytes}")
    try:
        return msgspec.json.decode(value, type=shape)
    except msgspec.ValidationError as error:
        raise fault_of(error, shape, value, place).refusal() from None


def text_parts(value: Raw, shape: type[T], place: str) -> T:
    """The parts of a message's content as Python objects.

    Errors: RefusedError names the field; an image, audio or a file is refused as such.
    """
    try:
        return decoded(value, shape, place)
    except RefusedError:
        refuse_media(value, place)
        raise


def refuse_media(value: Raw, place: str) -> None:
    """Errors: RefusedError if a part is not text."""
    try:
        found = msgspec.json.decode(value, type=list[_Typed])
    except (msgspec.DecodeError, RecursionError):
        return
    for i, part in enumerate(found):
        check_media(part.type, f"{place}[{i}]")


class _Typed(Struct):
    """An object of which only the type is read."""

    type: str | None = None


def entries(value: Raw, place: str, most: int) -> list[Raw]:
    """The entries of a list."""
    found = LIST.decode(must_be(value, place, "array"))
    if len(found) > most:
        raise refused(place, f"must be a list of at most {most} items, not {len(found)} items")
    return found


def texts(value: Raw, place: str, most: int) -> list[Raw]:
    """The entries of a list of texts."""
    found = entries(value, place, most)
    for i, text in enumerate(found):
        must_be(text, f"{place}[{i}]", "string")
    return found


def ids(value: Raw, place: str) -> Raw:
    """The value itself. Errors: RefusedError unless it is a list of token ids."""
    check_ids(place, bytes(value), LIMITS.ids)
    return value


def first_of_list(value: Raw) -> bytes:
    """The first character of a list's first entry; `]` where there is none."""
    found = FIRST.match(value)
    return found[1] if found else b""


def as_raw(text: str) -> Raw:
    """A text as JSON."""
    return Raw(msgspec.json.encode(text))


def joined(parts: list[Raw]) -> Raw:
    """Texts as one JSON text, joined by line feeds."""
    return Raw(b'"' + rb"\n".join(bytes(memoryview(each)[1:-1]) for each in parts) + b'"')


def text_of(value: Raw) -> str:
    """The text in a JSON string."""
    return msgspec.json.decode(value, type=str)


def object_in_text(text: str) -> Raw | None:
    """The JSON object in a text; None if it is not one or is too large."""
    if not text.lstrip(JSON_SPACE).startswith("{"):
        return None
    document = text.encode()
    try:
        check_body(document)
    except RefusedError:
        return None
    return Raw(document)


def refused(field: str, reason: str) -> RefusedError:
    """A 400 that names the field."""
    return RefusedError(f"{field}: {reason}", field, "invalid_value")


WORDS = {"string": "a string", "object": "an object", "array": "a list"}
NULL = ord("n")
KINDS = {
    ord('"'): "string",
    ord("{"): "object",
    ord("["): "array",
    ord("t"): "boolean",
    ord("f"): "boolean",
    NULL: "null",
}
"""By the first byte. As a number: a slice would make two objects, and each request asks often."""
LIST = msgspec.json.Decoder(list[Raw])
FIRST = re.compile(rb"\[[ \t\r\n]*(.)", re.DOTALL)
JSON_SPACE = " \t\r\n"
