"""[1] The X-Request-Id of every response: the client's own id, or a generated one.

Event loop. The id is a label for logs and support, not a key: two requests may share one.
"""

import re
from typing import Final

from aiohttp import web

from ingle.server.random_hex import random_hex

HEADER: Final = "X-Request-Id"
TRACEPARENT: Final = "traceparent"
PARENT: Final = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}"
    r"-[0-9a-f]{2}(?P<rest>-.*)?\Z"
)
PRINTABLE: Final = re.compile(r"[\x21-\x7e]{1,256}\Z")
"""Client ids that are accepted. Anything else could break a log line or a header."""
REQUEST_ID: Final = web.RequestKey("REQUEST_ID", str)
"""The id of a request, once it has been determined."""


def request_id(request: web.BaseRequest) -> str:
    """The client's X-Request-Id, else the body's `request_id` (see `adopt`), else a new one."""
    try:
        return request[REQUEST_ID]
    except KeyError:
        return adopt(request, None)


def adopt(request: web.BaseRequest, of_body: str | None) -> str:
    """Determines the id: the header's, else the one given in the body, else a new one."""
    for given in (request.headers.get(HEADER), of_body):
        if given and PRINTABLE.match(given):
            break
    else:
        given = new_id()
    request[REQUEST_ID] = given
    return given


def label(request: web.BaseRequest) -> str:
    """The id for a log line, with the trace that the caller belongs to, if it names one."""
    trace_id = trace_of(request.headers.get(TRACEPARENT))
    return request_id(request) if trace_id is None else f"{request_id(request)} trace {trace_id}"


def trace_of(header: str | None) -> str | None:
    """The trace id of a W3C traceparent; None unless the header is one.

    https://www.w3.org/TR/trace-context/: later versions may have more fields, version ff is
    invalid, and so are ids of zeros alone.
    """
    found = PARENT.match(header) if header else None
    if found is None or (found["version"] == "00" and found["rest"]):
        return None
    return found["trace"]


def new_id() -> str:
    """An id for a request that has none."""
    return "req_" + random_hex()
