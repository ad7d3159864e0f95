"""How far a download is, as a line on a terminal that is written over. Any thread.

Where standard error is no terminal nothing is shown: the log has a line for each file that is here.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO


class Progress:
    """The bar of one file."""

    def __init__(
        self,
        name: str,
        size: int,
        done: int = 0,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`done`: bytes that an earlier fetch has left."""
        self._name, self._size, self._done, self._before = name, size, done, done
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._began = clock()
        self._shown_at = float("-inf")
        self._lock = threading.Lock()
        self._is_shown = self._out.isatty()

    def add(self, num_bytes: int) -> None:
        """So many have come."""
        if not self._is_shown:
            return
        with self._lock:
            self._done += num_bytes
            now = self._clock()
            if now - self._shown_at >= EVERY_S:
                self._shown_at = now
                self._out.write(f"\r{self._line(now)}{CLEAR}")
                self._out.flush()

    def close(self) -> None:
        """Removes the line."""
        if self._is_shown and self._shown_at > float("-inf"):
            self._out.write(f"\r{CLEAR}")
            self._out.flush()

    def _line(self, now: float) -> str:
        share = min(self._done / max(self._size, 1), 1.0)
        filled = round(share * WIDTH)
        rate = (self._done - self._before) / max(now - self._began, 1e-3)
        left = f", {max(self._size - self._done, 0) / rate:.0f} s left" if rate > 0 else ""
        name = self._name if len(self._name) <= MOST_NAME else f"...{self._name[3 - MOST_NAME :]}"
        bar = "#" * filled + "-" * (WIDTH - filled)
        mb = f"{self._done / 1e6:,.0f} of {self._size / 1e6:,.0f} MB"
        return f"{name} [{bar}] {share:4.0%} {mb}, {rate / 1e6:,.0f} MB/s{left}"


EVERY_S = 0.1
WIDTH = 24
MOST_NAME = 40
CLEAR = "\x1b[K"
"""Clears the rest of the line."""
