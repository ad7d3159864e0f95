"""[1] From the bytes of a body to a request type, or to a 400 that names the field. Event loop.

The fast path is one msgspec decode. Only a body with a field that no type has takes the slow one:
there null and values that mean "off" are taken out, and what is left is refused or, with
`--unknown-fields warn`, logged and counted.
"""

import json
import logging
import re
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from ingle.errors import RefusedError
from ingle.server.protocol import OFF_VALUES

log = logging.getLogger("ingle.server")

T = TypeVar("T", bound=Struct)


class BodyParser(Generic[T]):
    """Reads bodies of one request type."""

    def __init__(self, kind: type[T], unknown: "UnknownFields") -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode
        self._unknown = unknown

    def parse(self, body: bytes) -> T:
        """The request in `body`. Errors: RefusedError 400 that names the field."""
        try:
            request = self._decode(body)
        except msgspec.ValidationError as error:
            if UNKNOWN.match(str(error)) is None:
                raise refusal(error) from None
            return self._parse_slowly(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise malformed(error) from None
        refuse_doubled_keys(body)
        return request

    def _parse_slowly(self, body: bytes) -> T:
        document = refuse_doubled_keys(body)
        refuse_half_characters(document)
        strip_off_values(document, self._kind.__struct_fields__)
        while True:
            try:
                return msgspec.convert(document, self._kind)
            except msgspec.ValidationError as error:
                unknown = UNKNOWN.match(str(error))
                if unknown is None or not self._unknown.take(unknown[1], document):
                    raise refusal(error) from None


class UnknownFields:
    """What happens to fields that no type has: refused, or taken out and counted."""

    def __init__(self, warn: bool) -> None:
        self._warn = warn
        self.counts: dict[str, int] = {}
        """How often each was taken out; at most `MOST_NAMES` names, the rest under `other`."""

    def take(self, name: str, document: dict[str, Any]) -> bool:
        """Removes a top-level field if the policy allows; whether it did."""
        if not self._warn or name not in document:
            return False
        del document[name]
        known = name in self.counts or len(self.counts) < self.MOST_NAMES
        counted = name[:64] if known and NAME.match(name) else "other"
        if counted not in self.counts:
            log.warning("request field %s is unknown and has no effect", counted)
        self.counts[counted] = self.counts.get(counted, 0) + 1
        return True

    MOST_NAMES = 64


def refuse_doubled_keys(body: bytes) -> Any:
    """The document as plain values. Two parsers may pick different ones of two equal keys."""
    try:
        return DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise malformed(error) from None


def refuse_half_characters(document: Any) -> None:
    """Lone surrogates, which Python's decoder takes and nothing behind it can write."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise malformed(error) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        name = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value] # add returns None on purpose.
        raise RefusedError(f"{name[:64]}: the field is there twice", name[:64], "invalid_json")
    return document


def strip_off_values(document: Any, known: tuple[str, ...]) -> None:
    """Takes null out of a body and its messages, and "off" values of fields that are not `known`.

    A known field with such a value says something: `tool_choice` "none" forbids calls.
    """
    if not isinstance(document, dict):
        return
    off = [k for k, v in document.items() if v is None or (k not in known and is_off(k, v))]
    for name in off:
        del document[name]
    turns = document.get("messages") or document.get("input")
    for message in turns if isinstance(turns, list) else ():
        if isinstance(message, dict):
            # Clients replay whole answers, with refusal, audio, function_call and annotations.
            # A content of null stays: it differs from no content.
            for name in [k for k, v in message.items() if v is None or v == []]:
                if name not in ("content", "role"):
                    del message[name]


def is_off(name: str, value: Any) -> bool:
    """Whether the value means that the field is not used; a bool never equals a number here."""
    return any(value == off and type(value) is type(off) for off in OFF_VALUES.get(name, ()))


def malformed(error: Exception) -> RefusedError:
    """A body that is not JSON."""
    if isinstance(error, RecursionError):
        return RefusedError("the body is nested too deeply", None, "invalid_json")
    if isinstance(error, UnicodeEncodeError):
        message = "the body is not valid JSON: half of a surrogate pair is no character"
        return RefusedError(message, None, "invalid_json")
    # Python's and msgspec's texts give positions, never content.
    text = str(error).splitlines()[0][:200]
    return RefusedError(f"the body is not valid JSON: {text}", None, "invalid_json")


def refusal(error: msgspec.ValidationError) -> RefusedError:
    """A value of the wrong type or out of range, with the field's path."""
    text = str(error)
    unknown = UNKNOWN.match(text)
    expected, _, place = text.partition(" - at ")
    path = PATH.search(place)
    field = path[1].removeprefix(".") if path else ""
    if unknown:
        name = f"{field}.{unknown[1]}" if field else unknown[1]
        return RefusedError(f"unknown field: {name[:200]}", name[:200], "unknown_field")
    missing = MISSING.match(text)
    if missing:
        name = f"{field}.{missing[1]}" if field else missing[1]
        return RefusedError(f"{name}: the field is required", name, "missing_field")
    field = field or None
    return RefusedError(f"{field}: {expected}" if field else expected, field, "invalid_value")


DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`( - at |$)", re.DOTALL)
MISSING = re.compile(r"Object missing required field `(.*?)`")
PATH = re.compile(r"`\$(.*)`$", re.DOTALL)
NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
