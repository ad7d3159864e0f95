"""[1] The id that every answer carries as X-Request-Id: the client's own, else one made up here.

Event loop. It is a label for logs and support, never a key: two requests may have the same.
"""

import os
import re
from typing import Final

from aiohttp import web

HEADER: Final = "X-Request-Id"
PRINTABLE: Final = re.compile(r"[\x21-\x7e]{1,256}\Z")
"""Ids that are taken from a client; others could break a log line or a header."""
REQUEST_ID: Final = web.RequestKey("REQUEST_ID", str)
"""The request's id, once it is known."""


def request_id(request: web.BaseRequest) -> str:
    """The client's X-Request-Id, else the body's `request_id` (see `adopt`), else a new one."""
    known = request.get(REQUEST_ID)
    if known is None:
        known = _sane(request.headers.get(HEADER)) or new_id()
        request[REQUEST_ID] = known
    return known


def adopt(request: web.BaseRequest, of_body: str | None) -> None:
    """Takes the id that the body gives; the header's wins."""
    found = _sane(request.headers.get(HEADER)) or _sane(of_body)
    if found is not None:
        request[REQUEST_ID] = found


def new_id() -> str:
    """An id that nobody else has and nobody can guess: 128 bits of the system's randomness.

    Not from `random`: whoever sees enough of its numbers can tell the next ones, and with them what
    other tenants' answers are called. The system is asked once for many ids, since it takes longer
    than the rest of this.
    """
    if not _pool:
        fresh = os.urandom(ID_BYTES * POOLED_IDS).hex()
        digits = 2 * ID_BYTES
        _pool.extend(fresh[at : at + digits] for at in range(0, len(fresh), digits))
    return "req_" + _pool.pop()


def _sane(given: str | None) -> str | None:
    return given if given and PRINTABLE.match(given) else None


ID_BYTES: Final = 16
POOLED_IDS: Final = 256
_pool: list[str] = []
os.register_at_fork(after_in_child=_pool.clear)
