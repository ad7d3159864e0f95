"""[1] Tracks the memory that is left and decides which requests may use it. Event loop only.

A worker whose control group has little memory must refuse requests that do not fit; otherwise the
kernel kills it. A request that needs much memory reserves it before it allocates. All requests are
refused while almost nothing is left. tests/server/test_memory_limit.py measures the sizes below.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

from ingle.errors import OverloadedError


class Headroom:
    """The memory that this worker may still use."""

    def __init__(self, room: Callable[[int], int], give_back: Callable[[], None]) -> None:
        """`room`: see `Engine.memory_room` of the core. `give_back` frees what nothing uses."""
        self._room = room
        self._give_back = give_back
        self._next_give_back = 0.0
        self._reserved = 0
        self._held: Counter[str] = Counter()
        """Reserved bytes by tenant. A tenant that has ever reserved memory keeps its entry."""
        self.looks_in = 0
        """Requests and connections until `look` is due. The one that goes below 0 calls it."""
        self._least = min(LEAST_BYTES, room(LARGE) // 4)
        """A worker that starts with less must still answer small requests."""
        self.short = False
        """Whether there is too little for any request, as of the last look."""

    def look(self) -> None:
        """Updates `short`."""
        self.looks_in = CALLS_A_LOOK
        self.short = self._left(0) < 0

    def refuse_if_short(self) -> None:
        """Errors: OverloadedError 503 while there is too little for any request."""
        self.looks_in -= 1
        if self.short or self.looks_in < 0:
            self.look()
        if self.short:
            raise OverloadedError("the worker has too little memory left", RETRY_S, status=503)

    @contextlib.contextmanager
    def reserve(self, tenant: str, num_bytes: int = 0) -> Iterator[Callable[[int], None]]:
        """Reserves `num_bytes` for the block, and more with each call of the yielded function.

        With several tenants, each gets at most half of the memory.
        Errors: OverloadedError 503 if that is not left.
        """
        held = 0

        def more(num_bytes: int) -> None:
            nonlocal held
            self._take(tenant, num_bytes)
            held += num_bytes

        try:
            more(num_bytes)
            yield more
        finally:
            self._reserved -= held
            self._held[tenant] -= held

    def _take(self, tenant: str, num_bytes: int) -> None:
        left = self._left(num_bytes)
        own = self._held[tenant]  # Remembers the tenant.
        if len(self._held) > 1:
            left = min(left, (left + num_bytes + self._reserved) // 2 - own - num_bytes)
        if left < 0:
            raise OverloadedError(
                f"this request may take {num_bytes >> 20} MiB of memory, "
                f"{max(0, left + num_bytes) >> 20} MiB are left",
                RETRY_S,
                status=503,
            )
        self._reserved += num_bytes
        self._held[tenant] += num_bytes

    def _left(self, num_bytes: int) -> int:
        """Bytes left if `num_bytes` more are reserved; negative if they are not there."""
        wanted = self._reserved + num_bytes + self._least
        left = self._room(wanted) - wanted
        now = time.monotonic()
        if left < 0 and now >= self._next_give_back:
            # Not at each refusal: it walks the whole heap, and refused clients try again.
            self._next_give_back = now + GIVE_BACK_S
            self._give_back()
            left = self._room(wanted) - wanted
        return left


LEAST_BYTES = 16 << 20
"""Kept free for small requests, connections and answers."""
BYTES_A_BODY_BYTE = 4
"""A body is received, joined, decoded and written as the core's document."""
BYTES_A_PROMPT_BYTE = 24
"""Tokenizing a prompt that is one word of a megabyte takes this much, other prompts a fifth."""
BYTES_OF_A_CHAT = 64 << 20
"""The most that a chat template may take; rust/jinja enforces it."""
CALLS_A_LOOK = 64
GIVE_BACK_S = 1.0
LARGE = 1 << 40
RETRY_S = 1.0
