"""[1] From the bytes of a body to a request type, or to a 400 that names the field. Any thread.

The core checks the JSON (`check_body`), which bounds what a decoder makes of it. Then follows one
msgspec decode. Only a body with an unknown field takes the slow path: null and values that mean
"off" are removed; the rest is refused or, with `--unknown-fields warn`, logged and counted. Parts
that stay JSON text are never turned into objects (raw.py).
"""

import logging
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from ingle.errors import RefusedError
from ingle.faults import fault_of
from ingle.generation import check_body
from ingle.server.unknown import is_among, off_values, without_unknown

log = logging.getLogger("ingle.server")

T = TypeVar("T", bound=Struct)
R = TypeVar("R")


class BodyParser(Generic[T]):
    """Reads bodies of one request type."""

    def __init__(self, kind: type[T], unknown: "UnknownFields") -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode
        self._unknown = unknown

    def parse(self, body: bytes) -> T:
        """The request in `body`. Errors: RefusedError 400 that names the field."""
        if len(body) > FIRST_TYPES_BYTES:
            check_body(body)
        try:
            request = self._decode(body)
        except msgspec.ValidationError as error:
            fault = fault_of(error, self._kind, body)
            if fault.code != "unknown_field":
                raise fault.refusal() from None
            check_body(body)
            return self._parse_slowly(body)
        except (msgspec.DecodeError, RecursionError):
            check_body(body)
            # The core's JSON reader accepts this and msgspec's does not.
            raise RefusedError("the body is not valid JSON", None, "invalid_json") from None
        if len(body) <= FIRST_TYPES_BYTES:
            check_body(body)
        return request

    def converted(self, body: bytes, request: T, make: Callable[..., R], *arguments: Any) -> R:
        """The result of `make` for the request in `body`.

        It looks into parts that stayed JSON, so that an unknown field may be met only here.
        """
        try:
            return make(request, *arguments)
        except RefusedError as error:
            if error.code != "unknown_field":
                raise
        return make(self._parse_slowly(body), *arguments)

    def _parse_slowly(self, body: bytes) -> T:
        left = Raw(body.strip())
        try:
            left = without_unknown(left, self._kind, self._unknown.may_go)
            return self._decode(left)
        except msgspec.ValidationError as error:
            raise fault_of(error, self._kind, left).refusal() from None


class UnknownFields:
    """The policy for unknown fields: refused, or removed and counted."""

    def __init__(self, warn: bool) -> None:
        self._warn = warn
        self.counts: dict[str, int] = {}
        """How often each was removed; at most `MOST_NAMES` names, the rest under `other`."""

    def may_go(self, place: str, name: str, value: Raw) -> bool:
        """Whether the field `name` of the object at `place` may be removed."""
        if is_off(place, name, value):
            return True
        if self._warn:
            self._count(f"{INDEX.sub('', place)}.{name}" if place else name)
        return self._warn

    def _count(self, name: str) -> None:
        is_new = name not in self.counts
        counted = name[:64]
        if NAME.match(name) is None or (is_new and len(self.counts) >= self.MOST_NAMES):
            counted = "other"
        if counted not in self.counts:
            log.warning("request field %s is unknown and has no effect", counted)
        self.counts[counted] = self.counts.get(counted, 0) + 1

    MOST_NAMES = 64


def is_off(place: str, name: str, value: Raw) -> bool:
    """Whether the value of an unknown field means that the field is not used.

    null does everywhere, and an empty list in what clients send back; a bool never equals a number.
    """
    if memoryview(value).nbytes > MOST_OFF_BYTES:
        return False
    found: Any = msgspec.json.decode(value)
    if found is None:
        return True
    if place:
        return bool(found == [])
    return is_among(found, off_values().get(name, ()))


FIRST_TYPES_BYTES = 16 << 10
"""Shorter bodies are decoded before the JSON check, so that errors name a field, not a position."""
MOST_OFF_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
INDEX = re.compile(r"\[[^\]]*\]")
