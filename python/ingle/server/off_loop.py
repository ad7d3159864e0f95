"""Work whose time grows with a body: on the event loop if that is short, else on one other thread.

One thread, not many: while it runs Python the loop shares the interpreter with it, and with it
alone. No piece of C code that it calls may keep the interpreter for long; see raw.py.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")


async def off_loop(num_bytes: int, work: Callable[..., T], *arguments: Any) -> T:
    """Calls `work`; on the other thread if the JSON it works on is long."""
    if num_bytes <= SHORT_BYTES:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(THREAD, work, *arguments)


SHORT_BYTES: Final = 16 << 10
"""A thread and back costs more than reading so much."""
THREAD: Final = ThreadPoolExecutor(1, "ingle-bodies")
"""Starts with the first long body; sleeps between them."""
