"""[1] Checks that a value of a caller in this process has a form in JSON; names the part that has
none. Any thread.
"""

import math
from typing import Any

from ingle.errors import RefusedError
from ingle.faults import description


def check_json(value: Any, place: str) -> None:
    """Errors: RefusedError names the part of `value` that has no form in JSON."""
    try:
        _check(value, place)
    except RecursionError:
        raise refused(place, "is nested too deeply or contains itself") from None


def _check(value: Any, place: str) -> None:
    match value:
        case None | bool():
            pass
        case str():
            valid_text(value, place)
        case int() | float():
            _check_number(value, place)
        case list() | tuple():
            for i, item in enumerate(value):
                _check(item, f"{place}[{i}]")
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise refused(place, f"a key must be a string, not {given_as(key)}")
                valid_text(key, place)
                _check(item, f"{place}.{key[:MOST_KEY]}")
        case _:
            raise refused(place, f"a value of type {type(value).__name__} has no form in JSON")


def _check_number(value: float, place: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise not_allowed(place, "a finite number", value)
    elif not -INT64 <= value < 2 * INT64:
        raise not_allowed(place, "a whole number of at most 64 bits", value)


def valid_text(text: str, place: str) -> str:
    """The text. Errors: RefusedError if it is none, as what `os.fsdecode` can make."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise refused(
            place, f"character {error.start} is half of a surrogate pair, which is not a character"
        ) from None
    return text


def not_allowed(place: str, allowed: str, given: Any) -> RefusedError:
    """The error of a value: what is allowed and what was given."""
    return refused(place, f"must be {allowed}, not {given_as(given)}")


def given_as(value: Any) -> str:
    """A caller's value as an error shows it."""
    return description(value, [], is_of_client=False)


def refused(place: str, reason: str) -> RefusedError:
    """The error that names the argument, or the part of it."""
    return RefusedError(f"{place}: {reason}", place, "invalid_value")


INT64 = 2**63
MOST_KEY = 64
"""Characters of a key that an error shows."""
