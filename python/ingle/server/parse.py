"""[1] From the bytes of a body to a request type, or to a 400 that names the field. Any thread.

The core looks through the JSON first (`check_body`), which bounds what a decoder makes of it; then
comes one msgspec decode. Only a body with a field that no type has takes the slow way: there null
and values that mean "off" are taken out, and what is left is refused or, with
`--unknown-fields warn`, logged and counted. No step makes objects of parts that stay JSON (raw.py).
"""

import logging
import re
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from ingle.errors import RefusedError
from ingle.generation import check_body
from ingle.server.protocol import OFF_VALUES
from ingle.server.raw import UNKNOWN, refusal

log = logging.getLogger("ingle.server")

T = TypeVar("T", bound=Struct)


class BodyParser(Generic[T]):
    """Reads bodies of one request type."""

    def __init__(self, kind: type[T], unknown: "UnknownFields") -> None:
        self._kind = kind
        self._known = frozenset(kind.__struct_fields__)
        self._decode = msgspec.json.Decoder(kind).decode
        self._unknown = unknown

    def parse(self, body: bytes) -> T:
        """The request in `body`. Errors: RefusedError 400 that names the field."""
        if len(body) > FIRST_TYPES_BYTES:
            check_body(body)
        try:
            request = self._decode(body)
        except msgspec.ValidationError as error:
            if UNKNOWN.match(str(error)) is None:
                raise refusal(error, self._kind) from None
            check_body(body)
            return self._parse_slowly(body)
        except (msgspec.DecodeError, RecursionError) as error:
            check_body(body)
            # What the core's reader takes and msgspec's does not, such as half a character.
            text = str(error).splitlines()[0][:200]
            message = f"the body is not valid JSON: {text}"
            raise RefusedError(message, None, "invalid_json") from None
        if len(body) <= FIRST_TYPES_BYTES:
            check_body(body)
        return request

    def _parse_slowly(self, body: bytes) -> T:
        try:
            document = FIELDS.decode(body)
        except msgspec.ValidationError as error:
            raise refusal(error, self._kind) from None
        strip_off_values(document, self._known)
        self._unknown.take_out(document, self._known)
        try:
            return self._decode(msgspec.json.encode(document))
        except msgspec.ValidationError as error:
            raise refusal(error, self._kind) from None


class UnknownFields:
    """What happens to fields that no type has: refused, or taken out and counted."""

    def __init__(self, warn: bool) -> None:
        self._warn = warn
        self.counts: dict[str, int] = {}
        """How often each was taken out; at most `MOST_NAMES` names, the rest under `other`."""

    def take_out(self, document: dict[str, Raw], known: frozenset[str]) -> None:
        """Removes top-level fields that are not `known`, if the policy allows."""
        if self._warn:
            for name in [name for name in document if name not in known]:
                del document[name]
                self._count(name)

    def _count(self, name: str) -> None:
        is_new = name not in self.counts
        counted = name[:64]
        if NAME.match(name) is None or (is_new and len(self.counts) >= self.MOST_NAMES):
            counted = "other"
        if counted not in self.counts:
            log.warning("request field %s is unknown and has no effect", counted)
        self.counts[counted] = self.counts.get(counted, 0) + 1

    MOST_NAMES = 64


def strip_off_values(document: dict[str, Raw], known: frozenset[str]) -> None:
    """Takes null out of a body and its messages, and "off" values of fields that are not `known`.

    A known field with such a value says something: `tool_choice` "none" forbids calls.
    """
    off = [k for k, v in document.items() if is_off(k, v, known)]
    for name in off:
        del document[name]
    if "messages" in document:
        document["messages"] = without_nulls(document["messages"])


def without_nulls(turns: Raw) -> Raw:
    """Messages or items without their fields that are null or empty lists.

    Clients replay whole answers, with refusal, audio, function_call and annotations. A content of
    null stays: it differs from no content.
    """
    try:
        messages = MESSAGES.decode(turns)
    except msgspec.ValidationError:
        return turns  # The types tell what is wrong.
    for message in messages:
        for name in [k for k, v in message.items() if small_value(v) in (None, [])]:
            if name not in ("content", "role"):
                del message[name]
    return Raw(msgspec.json.encode(messages))


def is_off(name: str, value: Raw, known: frozenset[str]) -> bool:
    """Whether the value means that the field is not used; a bool never equals a number here."""
    found = small_value(value)
    if found is None or name in known:
        return found is None
    return any(found == off and type(found) is type(off) for off in OFF_VALUES.get(name, ()))


def small_value(value: Raw) -> Any:
    """The value if its text is short, as every value that means "off" is; else Ellipsis."""
    return msgspec.json.decode(value) if memoryview(value).nbytes <= MOST_OFF_BYTES else ...


FIRST_TYPES_BYTES = 16 << 10
"""A shorter body meets its types first: they name the field where JSON's rules name a position."""
MOST_OFF_BYTES = 32
FIELDS = msgspec.json.Decoder(dict[str, Raw])
MESSAGES = msgspec.json.Decoder(list[dict[str, Raw]])
NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
