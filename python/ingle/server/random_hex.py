"""[1] Random ids: of requests and of responses. Event loop and body thread."""

import os
from typing import Final


def random_hex() -> str:
    """32 hex digits that no other caller gets and nobody can guess: 128 bits from the system.

    The `random` module would not do: a client that sees enough of its output can predict the rest,
    and with it the ids of other tenants. The system call is the slow part, so one call serves many
    ids.
    """
    try:
        return _pool.pop()
    except IndexError:  # Not a look before: another thread may take the last one meanwhile.
        fresh = os.urandom(ID_BYTES * POOLED_IDS).hex(" ", ID_BYTES).split()
        found = fresh.pop()
        _pool.extend(fresh)
        return found


ID_BYTES: Final = 16
POOLED_IDS: Final = 256
_pool: list[str] = []
os.register_at_fork(after_in_child=_pool.clear)
