"""[1] The X-Request-Id of every response: the client's own id, or a generated one.

Event loop. The id is a label for logs and support, not a key: two requests may share one.
"""

import os
import re
from typing import Final

from aiohttp import web

HEADER: Final = "X-Request-Id"
PRINTABLE: Final = re.compile(r"[\x21-\x7e]{1,256}\Z")
"""Client ids that are accepted. Anything else could break a log line or a header."""
REQUEST_ID: Final = web.RequestKey("REQUEST_ID", str)
"""The id of a request, once it has been determined."""


def request_id(request: web.BaseRequest) -> str:
    """The client's X-Request-Id, else the body's `request_id` (see `adopt`), else a new one."""
    known = request.get(REQUEST_ID)
    if known is None:
        known = _sane(request.headers.get(HEADER)) or new_id()
        request[REQUEST_ID] = known
    return known


def adopt(request: web.BaseRequest, of_body: str | None) -> None:
    """Uses the id given in the body, unless the header gives one."""
    found = _sane(request.headers.get(HEADER)) or _sane(of_body)
    if found is not None:
        request[REQUEST_ID] = found


def new_id() -> str:
    """A unique id that cannot be guessed: 128 bits of the system's randomness.

    The `random` module would not do: a client that sees enough of its output can predict the rest,
    and with it the ids of other tenants. The system call is the slow part, so one call serves many
    ids.
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
