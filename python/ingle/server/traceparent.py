"""[1] The W3C trace that a request belongs to, from its `traceparent` header. No I/O.

https://www.w3.org/TR/trace-context/: later versions may have more fields, version ff is invalid,
and so are ids of zeros alone.
"""

import re
from typing import Final

from msgspec import Struct

TRACEPARENT: Final = "traceparent"
PARENT: Final = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})"
    r"-(?P<span>(?!0{16})[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?\Z"
)


class Parent(Struct, frozen=True):
    """The caller's place in its trace."""

    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 hex digits."""
    is_sampled: bool
    """Whether the caller records the trace."""


def parent_of(header: str | None) -> Parent | None:
    """What a traceparent says; None unless the header is one."""
    found = PARENT.match(header) if header else None
    if found is None or (found["version"] == "00" and found["rest"]):
        return None
    return Parent(found["trace"], found["span"], bool(int(found["flags"], 16) & SAMPLED))


SAMPLED: Final = 1
"""Flag of the traceparent."""
