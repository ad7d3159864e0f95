"""[1] What a field with a fixed set of values may be, for the error that says so. Any thread.

msgspec's own message quotes the client and names none of them.
"""

import functools
import re
from typing import Any

import msgspec
from msgspec import inspect


def choices_at(kind: Any, path: str) -> str | None:
    """The values of the field at `path`, as `.messages[0].role`; None where they are not fixed."""
    types = [type_info(kind)]
    for name in STEP.findall(path):
        types = [below for each in types for below in step(each, name)]
    values = list(dict.fromkeys(value for each in types for value in values_of(each)))
    if len(values) < 2:
        return values[0] if values else None
    return f"{', '.join(values[:-1])} or {values[-1]}"


@functools.cache
def type_info(kind: Any) -> inspect.Type:
    """The type as data."""
    return inspect.type_info(kind)


def step(given: inspect.Type, name: str) -> list[inspect.Type]:
    """The types that a part of a value may have; `name` is empty for an entry of a list."""
    match given:
        case inspect.Metadata(type=inner):
            return step(inner, name)
        case inspect.UnionType(types=several):
            return [below for each in several for below in step(each, name)]
        case inspect.ListType(item_type=item) if not name:
            return [item]
        case inspect.DictType(value_type=value):
            return [value]
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            if name == tag_field:
                return [inspect.LiteralType((tag,))]
            return [field.type for field in fields if field.encode_name == name]
    return []


def values_of(given: inspect.Type) -> list[str]:
    """The fixed values of a type, as JSON; the range of numbers beside them."""
    match given:
        case inspect.Metadata(type=inner):
            return values_of(inner)
        case inspect.UnionType(types=several):
            return [value for each in several for value in values_of(each)]
        case inspect.LiteralType(values=values):
            return [msgspec.json.encode(value).decode() for value in values]
        case inspect.IntType(ge=least, le=most):
            return [f"a whole number from {least} to {most}"]
    return []


STEP = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")
