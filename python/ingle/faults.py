"""[1] Error texts for wrong values: which field, what is allowed, what was given. Any thread.

msgspec finds the fault and its place. This file writes the text, from the expected type and the
value; msgspec's own text is never shown. A text that a client sent as JSON is not quoted, except
for a single word in a field with fixed values. A caller in this process sees its own value.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, inspect

from ingle.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Fault:
    """What msgspec found, in our words."""

    place: str
    """The field's path, as `messages[0].role`; empty for the whole value."""
    reason: str
    code: str
    """For programs: invalid_value, missing_field or unknown_field."""

    def message(self) -> str:
        """One line."""
        if self.code == "unknown_field":
            return f"unknown field: {self.place}"
        return f"{self.place}: {self.reason}" if self.place else f"the body {self.reason}"

    def refusal(self) -> RefusedError:
        """The error that names the field."""
        return RefusedError(self.message(), self.place or None, self.code)


def fault_of(error: msgspec.ValidationError, shape: Any, value: Any, place: str = "") -> Fault:
    """What is wrong with `value`, which is no `shape` and lies at `place`.

    `value` is JSON text (bytes or Raw), or anything that `msgspec.convert` was asked about.
    """
    text = str(error)
    where = text.partition(" - at ")[2]
    is_key = where.startswith("`key` in ")
    found = PATH.search(where)
    path = found[1] if found else ""
    field = f"{place}{path}".removeprefix(".").replace("[...]", "")
    unknown, missing = UNKNOWN.match(text), MISSING.match(text)
    if unknown:
        name = f"{field}.{unknown[1]}" if field else unknown[1]
        return Fault(name[:200], "unknown field", "unknown_field")
    if missing:
        name = f"{field}.{missing[1]}" if field else missing[1]
        return Fault(name, "the field is required", "missing_field")
    types = [type_info(shape)]
    part: Any = Raw(value) if isinstance(value, bytes) else value
    inside, is_of_client = "must be", isinstance(part, Raw)
    for name in STEP.findall(path):
        entries = dictionaries(types) if name == "[...]" else []
        types = [below for each in types for below in step(each, name)]
        if entries:
            key, part = first_misfit(part, types)
            label = str(key) if isinstance(key, int) else quoted(key)
            inside = f"the value of {label} must be" if label else "a value must be"
        else:
            part = below_of(part, name)
    if is_key:
        types = [each.key_type for each in dictionaries(types)]
        part, inside = first_bad_key(part, types), "a key must be"
    return Fault(field, f"{inside} {expectation(types, part, is_of_client)}", "invalid_value")


def expectation(types: list[inspect.Type], value: Any, is_of_client: bool) -> str:
    """`a number from 0 to 2, not 2.5`: what one of the types allows, and what was given."""
    flat = [each for given in types for each in alternatives(given)]
    kinds = list(dict.fromkeys(words_of(flat)))
    # null means absent everywhere, so it is named only if nothing else is allowed.
    kinds = [each for each in kinds if each != "null"] or kinds
    given = description(value, [kind for kind, _ in flat], is_of_client)
    return f"{one_of(kinds)}, not {given}" if given else one_of(kinds)


def one_of(words: list[str]) -> str:
    """`a, b or c`."""
    if len(words) < 2:
        return words[0] if words else "something else"
    return f"{', '.join(words[:-1])} or {words[-1]}"


def alternatives(given: inspect.Type) -> Iterator[tuple[inspect.Type, str | None]]:
    """The types that a value may have, each with words that its annotation has for it."""
    match given:
        case inspect.Metadata(type=inner, extra=extra):
            extra = extra or {}
            if "shape" in extra:
                inner = type_info(extra["shape"])
            for kind, words in alternatives(inner):
                yield kind, words or extra.get("allowed")
        case inspect.UnionType(types=several):
            for each in several:
                yield from alternatives(each)
        case _:
            yield given, None


def words_of(flat: list[tuple[inspect.Type, str | None]]) -> Iterator[str]:
    """What each alternative allows."""
    for kind, words in flat:
        if words is not None:
            yield words
        elif isinstance(kind, inspect.LiteralType):
            yield from (json.dumps(value) for value in kind.values)
        else:
            yield allowed_by(kind)


def allowed_by(kind: inspect.Type) -> str:
    """The values of one type: `a whole number from 1 to 128`."""
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + span(kind)
        case inspect.FloatType():
            return "a number" + span(kind)
        case inspect.StrType(min_length=least, max_length=most):
            return "a string" + size(least, most, "character")
        case inspect.ListType(min_length=least, max_length=most):
            return "a list" + size(least, most, "item")
        case inspect.DictType(min_length=least, max_length=most):
            return "an object" + size(least, most, "entry")
        case inspect.StructType():
            return "an object"
        case inspect.NoneType():
            return "null"
        case inspect.CustomType(cls=cls):
            return CUSTOM.get(cls.__name__, f"a {cls.__name__}")
    return "any value"


def span(kind: inspect.IntType | inspect.FloatType) -> str:
    """The range of a number, as the end of a phrase."""
    least = kind.ge if kind.gt is None else kind.gt
    most = kind.le if kind.lt is None else kind.lt
    if least is not None and most is not None and kind.gt is None and kind.lt is None:
        return f" from {number(least)} to {number(most)}"
    ends = []
    if least is not None:
        ends.append(f"{'at least' if kind.gt is None else 'above'} {number(least)}")
    if most is not None:
        ends.append(f"{'at most' if kind.lt is None else 'below'} {number(most)}")
    text = " and ".join(ends)
    return text and (f" of {text}" if text.startswith("at ") else f" {text}")


def number(value: float) -> str:
    """Without a needless `.0`."""
    return str(int(value)) if value == int(value) else repr(value)


def size(least: int | None, most: int | None, unit: str) -> str:
    """How long something may be, as the end of a phrase."""
    if least and most:
        return f" of {least} to {count(most, unit)}"
    if most is not None:
        return f" of at most {count(most, unit)}"
    return f" of at least {count(least, unit)}" if least else ""


def count(number: int, unit: str) -> str:
    """`1 entry`, `2 entries`."""
    if number == 1:
        return f"1 {unit}"
    return f"{number} {unit.removesuffix('y')}ies" if unit.endswith("y") else f"{number} {unit}s"


def description(value: Any, kinds: list[inspect.Type], is_of_client: bool) -> str:
    """What was given; empty where that says nothing. A text is quoted if it is not a client's."""
    if isinstance(value, Raw):
        value = shallow(value)
    match value:
        case _Unknown():
            return ""
        case None | bool():
            return json.dumps(value)
        case int() | float():
            return repr(value) if len(repr(value)) <= MOST_DIGITS else "a number of many digits"
        case str():
            return text_given(value, kinds, is_of_client)
        case list() | tuple():
            is_long = any(isinstance(kind, inspect.ListType) for kind in kinds)
            length = count(len(value), "item") if value else "an empty list"
            return length if is_long else "a list"
        case dict():
            is_long = any(isinstance(kind, inspect.DictType) for kind in kinds)
            return count(len(value), "entry") if is_long else "an object"
    return f"a {type(value).__name__}"


def described(value: Raw) -> str:
    """What a part is, where its type is wrong."""
    return description(value, [], is_of_client=True)


def text_given(text: str, kinds: list[inspect.Type], is_of_client: bool) -> str:
    """A text as an error may name it."""
    short = quoted(text) if is_of_client else json.dumps(text[:MOST_QUOTED])
    fixed = [k for k in kinds if isinstance(k, inspect.LiteralType)]
    if any(isinstance(value, str) for each in fixed for value in each.values):
        return short or "another text"
    if any(isinstance(kind, inspect.StrType) for kind in kinds):
        lengths = [kind for kind in kinds if isinstance(kind, inspect.StrType)]
        if any(misses(len(text), each.min_length, each.max_length) for each in lengths):
            return count(len(text), "character") if text else "an empty one"
        return short or "this one"
    return "a string" if is_of_client else short


def misses(length: int, least: int | None, most: int | None) -> bool:
    """Whether a length is out of range."""
    return (least is not None and length < least) or (most is not None and length > most)


def quoted(word: Any) -> str:
    """A single short word in quotes; empty for any other text."""
    return json.dumps(word) if isinstance(word, str) and WORD.match(word) else ""


class _Unknown:
    """A value that could not be looked at."""


UNKNOWN_VALUE = _Unknown()


def shallow(value: Raw) -> Any:
    """JSON text as Python objects, one level deep."""
    try:
        match bytes(memoryview(value)[:1]):
            case b"{":
                return OBJECT.decode(value)
            case b"[":
                return LIST.decode(value)
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return UNKNOWN_VALUE


def below_of(value: Any, name: str) -> Any:
    """The part of a value at one step of a path."""
    if isinstance(value, Raw):
        value = shallow(Raw(bytes(value).strip()))
    try:
        if name.startswith("["):
            return value[int(name[1:-1])]
        return value[name[1:]] if isinstance(value, dict) else getattr(value, name[1:])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return UNKNOWN_VALUE


def entries_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """The entries of an object."""
    found = shallow(value) if isinstance(value, Raw) else value
    return found.items() if isinstance(found, dict) else ()


def first_misfit(value: Any, types: list[inspect.Type]) -> tuple[Any, Any]:
    """The first entry of an object whose value none of the types takes."""
    for key, part in entries_of(value):
        if not any(takes(kind, part) for given in types for kind, _ in alternatives(given)):
            return key, part
    return None, UNKNOWN_VALUE


def first_bad_key(value: Any, types: list[inspect.Type]) -> Any:
    """The first key of an object that none of the types takes."""
    for key, _ in entries_of(value):
        if not any(takes(kind, key) for given in types for kind, _ in alternatives(given)):
            return key
    return UNKNOWN_VALUE


def takes(kind: inspect.Type, value: Any) -> bool:
    """Whether a scalar type takes a value; other types take everything."""
    if isinstance(value, Raw):
        value = shallow(value)
    match kind:
        case inspect.StrType(pattern=pattern):
            if not isinstance(value, str) or misses(len(value), kind.min_length, kind.max_length):
                return False
            return pattern is None or re.search(pattern, value) is not None
        case inspect.IntType() | inspect.FloatType():
            whole = isinstance(kind, inspect.IntType)
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                return False
            low = (kind.ge is None or value >= kind.ge) and (kind.gt is None or value > kind.gt)
            return low and (kind.le is None or value <= kind.le)
    return True


def dictionaries(types: list[inspect.Type]) -> list[inspect.DictType]:
    """Those of the types that are dictionaries."""
    flat = [kind for each in types for kind, _ in alternatives(each)]
    return [kind for kind in flat if isinstance(kind, inspect.DictType)]


@functools.cache
def type_info(kind: Any) -> inspect.Type:
    """The type as data."""
    return inspect.type_info(kind)


def step(given: inspect.Type, name: str) -> list[inspect.Type]:
    """The types that the part at one step of a path may have."""
    found: list[inspect.Type] = []
    for kind, _ in alternatives(given):
        match kind:
            case inspect.ListType(item_type=item) if name.startswith("["):
                found.append(item)
            case inspect.DictType(value_type=value):
                found.append(value)
            case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
                if name[1:] == tag_field:
                    found.append(inspect.LiteralType((tag,)))
                found += [field.type for field in fields if f".{field.encode_name}" == name]
    return found


UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`( - at |$)", re.DOTALL)
MISSING = re.compile(r"Object missing required field `(.*?)`")
PATH = re.compile(r"`\$(.*)`$", re.DOTALL)
STEP = re.compile(r"\.[^.\[]+|\[[^\]]*\]")
WORD = re.compile(r"[A-Za-z0-9_.:-]{1,32}\Z")
OBJECT = msgspec.json.Decoder(dict[str, Raw])
LIST = msgspec.json.Decoder(list[Raw])
MOST_DIGITS = 24
MOST_QUOTED = 64
CUSTOM = {"Path": "a path"}
