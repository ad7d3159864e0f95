"""[1] The X-Request-Id of every response: the client's own id, or a generated one.

Event loop. The id is a label for logs and support, not a key: two requests may share one.
"""

import re
from typing import Final

from aiohttp import web

from ingle.server.random_hex import random_hex
from ingle.server.traceparent import TRACEPARENT, parent_of

HEADER: Final = "X-Request-Id"
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
    parent = parent_of(request.headers.get(TRACEPARENT))
    name = request_id(request)
    return name if parent is None else f"{name} trace {parent.trace_id}"


def new_id() -> str:
    """An id for a request that has none."""
    return "req_" + random_hex()
