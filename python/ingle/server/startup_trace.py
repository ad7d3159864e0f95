"""What the start of `ingle serve` consisted of, as a Chrome trace (`--startup-trace FILE`).

Open the file in chrome://tracing or ui.perfetto.dev. It is opened before the lock-down and written
right before its second half, after which the process can write no file. That half is the one phase
that the trace lacks.
"""

import contextlib
import errno
import json
import logging
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ingle.errors import ConfigError

log = logging.getLogger("ingle")


class StartupTrace:
    """Collects phases from the start of the process on. Any thread."""

    def __init__(self, path: Path | None, logs: bool = False) -> None:
        """`logs`: write a line to the log for each phase of a model's load.

        Errors: ConfigError if the file cannot be written.
        """
        self._logs = logs
        self._phases = [Phase("interpreter and imports", MAIN, began_s(), time.monotonic())]
        self._descriptor: int | None = None
        if path is None:
            return
        try:
            self._descriptor = open_regular(path)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"startup_trace: cannot write {path}: {why}") from None

    def descriptors(self) -> list[int]:
        """What must stay open."""
        return [] if self._descriptor is None else [self._descriptor]

    @contextlib.contextmanager
    def phase(self, name: str, thread: str = "") -> Iterator[None]:
        """Keeps when the body ran."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._phases.append(Phase(name, thread or MAIN, began, time.monotonic()))

    def add_load(self, model: str, start_up: Mapping[str, Any]) -> None:
        """The phases of a model's load: `info["start_up"]`."""
        base = start_up["began_s"]
        whole = next(each["thread"] for each in start_up["phases"] if each["name"] == "device")
        for each in start_up["phases"]:
            began = base + each["start_s"]
            thread = MAIN if each["thread"] == whole else each["thread"]
            name = f"{model}: {each['name']}"
            self._phases.append(Phase(name, thread, began, began + each["time_s"]))
            if self._logs:
                log.info("%s: %.2f s", name, each["time_s"])

    def write(self) -> None:
        """Writes what there is and closes the file. Errors: ConfigError."""
        if self._descriptor is None:
            return
        first = self._phases[0].began
        threads = list(dict.fromkeys(each.thread for each in self._phases))
        events: list[dict[str, Any]] = [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": thread}}
            for tid, thread in enumerate(threads)
        ]
        events += [
            {
                "name": each.name, "ph": "X", "pid": 1, "tid": threads.index(each.thread),
                "ts": round((each.began - first) * 1e6),
                "dur": round((each.ended - each.began) * 1e6),
            }
            for each in self._phases
        ]  # fmt: skip
        try:
            with open(self._descriptor, "w") as file:
                json.dump({"displayTimeUnit": "ms", "traceEvents": events}, file)
        except OSError as error:
            raise ConfigError(f"startup_trace: cannot write it: {error.strerror}") from None
        self._descriptor = None

    def age_s(self) -> float:
        """How long ago the kernel began this process."""
        return time.monotonic() - self._phases[0].began


def open_regular(path: Path) -> int:
    """Opens a file that is written from its beginning. Errors: OSError, also if it is no file.

    A pipe without a reader would hold up the start, and root may start a server in a folder where
    others can make links.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError("it is a link") from None
        if error.errno == errno.ENXIO:
            raise OSError("it is no regular file") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Phase:
    """What one thread did, from when to when, in seconds of the monotonic clock."""

    __slots__ = ("began", "ended", "name", "thread")

    def __init__(self, name: str, thread: str, began: float, ended: float) -> None:
        self.name, self.thread, self.began, self.ended = name, thread, began, ended


def began_s() -> float:
    """When the kernel began this process: 10 ms exact, as it keeps it."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.monotonic()
    return time.monotonic() - age


MAIN = "main"
