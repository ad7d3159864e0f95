"""How far the weights of a model are while they load, as a line on a terminal.

Where standard error is no terminal nothing is shown and no thread starts. Main thread.
"""

import sys
import threading
from types import TracebackType
from typing import Self, TextIO

from ingle import _core
from ingle.progress import EVERY_S, Progress
from ingle.threads import name_thread


class WeightsBar:
    """A context manager around the load of one model; give its `progress` to the core."""

    def __init__(self, name: str, shows: bool = True, out: TextIO | None = None) -> None:
        """`shows`: whether there is a line at all."""
        self.progress = _core.LoadProgress()
        self._name = name
        self._out = sys.stderr if out is None else out
        self._shows = shows and self._out.isatty()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if not self._shows:
            return self
        thread = threading.Thread(target=self._show, daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:
            pass  # No threads left: the load says so if it needs one.
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        name_thread("ingle-progress")
        bar: Progress | None = None
        shown = 0
        while not self._ended.wait(EVERY_S):
            done, total = self.progress.so_far()
            if total == 0:
                continue
            if bar is None:
                bar = Progress(f"{self._name}: weights", total, out=self._out)
            bar.add(done - shown)
            shown = done
        if bar is not None:
            bar.close()
