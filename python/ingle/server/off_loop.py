"""Runs work whose time grows with a body: on the event loop if short, otherwise on one thread.

There is only one thread, because its Python code shares the interpreter with the loop. C code that
it calls must not hold the interpreter for long; see raw.py.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from ingle.server.turns import in_thread, start_threads
from ingle.threads import thread_pool

T = TypeVar("T")


async def off_loop(num_bytes: int, work: Callable[..., T], *arguments: Any) -> T:
    """Calls `work`, on the other thread if its JSON is long.

    Errors: those of `work`; OverloadedError 503 if the system gives no thread.
    """
    if num_bytes <= SHORT_BYTES:
        return work(*arguments)
    return await in_thread(THREAD, work, *arguments)


def start_body_thread() -> None:
    """Starts the thread, so that no request has to. Errors: ConfigError if there is none."""
    start_threads(THREAD, 1, "ingle-bodies")


SHORT_BYTES: Final = 16 << 10
"""Switching threads costs more than parsing this much."""
THREAD: Final = thread_pool(1, "ingle-bodies")
"""Starts with a server, or with the first long body; sleeps between them."""
