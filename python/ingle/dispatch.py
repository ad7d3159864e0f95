"""[7] Hands the core's events to their requests: one drain per wake-up, no task per stream.

Events come from one eventfd. It is watched either by an event loop (`use_loop`, the server) or by
one sleeping thread that starts with the first request (the Python API). A sink is called on the
watching thread, or on the registering thread for events that came in between. It must not block.
`_lock` guards the tables; a watcher holds it for one batch. A forked process has none of the
engine's threads and no share in its descriptors, so it is refused.
"""

import logging
import os
import select
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ingle import _core
from ingle.errors import FatalError, error_of_event
from ingle.traces import trace

if TYPE_CHECKING:
    # Each start of the server waits for what this file imports, but the loop comes much later.
    import asyncio

log = logging.getLogger("ingle")

Sink = Callable[[int, Any], None]
"""Gets (kind, payload) of one request: the core's kinds and ABORTED."""

Core = _core.Engine
FRAME, HEADED = _core.FRAME, _core.HEADED
END, ERROR, DELTA, TIMES = _core.END, _core.ERROR, _core.DELTA, _core.TIMES
"""The core's kinds of events, see `_core.pyi`."""
ABORTED = -1
"""Kind of the last event of a request that was ended with `abort`; the payload is None."""

ENGINE_KEY = 0
"""Key of the engine's own event: the error that killed it."""


_process = object()
"""Identifies this process; a fork gets another one. Comparing pids would cost system calls."""


def _forked() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_forked)


class Dispatcher:
    """Owns the consuming end of one core engine's outbox."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.RLock()
        self._sinks: dict[int, Sink] = {}
        # Events of requests whose key `submit` has not returned yet; kept while any is pending.
        self._early: dict[int, list[tuple[int, object]]] = {}
        self._pending = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._wake: weakref.finalize[..., Any] | None = None
        self._closed = False
        self._process = _process
        self._on_fatal: Callable[[str], None] | None = None

    def use_loop(self, loop: "asyncio.AbstractEventLoop", on_fatal: Callable[[str], None]) -> None:
        """Lets `loop` watch for events from now on. Called on that loop's thread.

        `on_fatal` is called there with a reason if the engine dies.
        """
        self._stop_thread()
        self._loop = loop
        self._on_fatal = on_fatal
        loop.add_reader(self._core.event_fd(), self.drain)

    def leave_loop(self) -> None:
        """Stops watching in the loop; the next request of the Python API starts the thread."""
        if self._loop is not None:
            self._loop.remove_reader(self._core.event_fd())
            self._loop = None
            self._on_fatal = None

    def submit(self, request: bytes, sink: Sink) -> int:
        """Queues one request whose events go to `sink`; returns its key.

        Blocking: as long as tokenising takes, with the interpreter detached.
        Errors: those of the core's `submit`; then nothing was queued and `sink` is never called.
        """
        self.expect()
        try:
            key = self._core.submit(request)
        except BaseException:
            self.register(None, None)
            raise
        self.register(key, sink)
        return key

    def submit_if_brief(self, request: bytes, sink: Sink) -> int | None:
        """As `submit`, on an event loop, which must not wait for long.

        None: nothing was queued, because it takes longer; `submit` on another thread does it.
        """
        self.expect()
        key = None
        try:
            key = self._core.submit_if_brief(request)
        finally:
            self.register(key, sink)
        return key

    def expect(self) -> None:
        """Announces a submit on another thread. `register` must always follow."""
        if self.is_foreign():
            raise FatalError("a forked process cannot use its parent's engine; make one there")
        with self._lock:
            if self._closed:
                raise FatalError("the engine was shut down")
            self._pending += 1
            if self._loop is None and self._thread is None:
                self._start_thread()

    def register(self, key: int | None, sink: Sink | None) -> None:
        """Completes an `expect`. A key of None means that the submit failed."""
        with self._lock:
            self._pending -= 1
            if key is not None and sink is not None:
                self._sinks[key] = sink
                for kind, payload in self._early.pop(key, ()):
                    self._deliver(key, sink, kind, payload)
            if self._pending == 0:
                self._early.clear()

    def abort(self, key: int) -> None:
        """Ends a request; its sink gets ABORTED and nothing after it.

        Unknown keys and those of requests that have ended are ignored.
        """
        if self.is_foreign():
            return
        with self._lock:
            sink = self._sinks.pop(key, None)
        if sink is not None:
            self._core.abort(key)
            sink(ABORTED, None)

    def drain(self) -> None:
        """Delivers all pending events. Runs on the watching thread."""
        with self._lock:
            sinks = self._sinks
            for key, kind, payload in self._core.drain():
                sink = sinks.get(key)
                if sink is not None:
                    self._deliver(key, sink, kind, payload)
                elif key == ENGINE_KEY:
                    self._engine_died(payload)
                elif self._pending:
                    self._early.setdefault(key, []).append((kind, payload))

    def pump(self, timeout_s: float) -> None:
        """Waits for events and delivers them, on the thread whose loop watches but is blocked."""
        poll = select.poll()
        poll.register(self._core.event_fd(), select.POLLIN)
        if poll.poll(timeout_s * 1000):
            self.drain()

    def watched_here(self) -> bool:
        """Whether this is the thread that must not wait for the loop."""
        if self._loop is None:
            return False
        import asyncio

        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that made the engine."""
        return self._process is not _process

    def close(self) -> None:
        """Ends every request with ABORTED and stops watching. Idempotent."""
        if self.is_foreign():
            return
        with self._lock:
            self._closed = True
            keys = list(self._sinks)
        for key in keys:
            self.abort(key)
        self.leave_loop()
        self._stop_thread()

    def _deliver(self, key: int, sink: Sink, kind: int, payload: object) -> None:
        if kind in (END, ERROR):
            self._sinks.pop(key, None)
        try:
            sink(kind, payload)
        except Exception as error:  # noqa: BLE001 # Logged, without its text.
            # Our own bug. The other requests of this batch must not suffer from it.
            log.error("a sink failed\n%s", trace(error))
            self._sinks.pop(key, None)
            self._core.abort(key)

    def _engine_died(self, payload: Any) -> None:
        # Every request has its own error already. This one is for the process.
        if self._on_fatal is not None:
            self._on_fatal(str(error_of_event(payload)))

    def _start_thread(self) -> None:
        fd, wake_fd = self._core.event_fd(), os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # The thread must not keep its engine alive: an unreferenced engine is freed like any
        # other object, and the thread ends with it.
        self._wake = weakref.finalize(self, _wake_watcher, wake_fd, self._process)
        self._wake.atexit = False
        self._thread = threading.Thread(
            target=_watch, args=(weakref.ref(self), fd, wake_fd), name="ingle-events", daemon=True
        )
        self._thread.start()

    def _stop_thread(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and self._wake is not None:
            self._wake()
            thread.join()


def _wake_watcher(wake_fd: int, process: object) -> None:
    # A forked process shares the descriptor: what it drops must not stop its parent's thread.
    if process is _process:
        os.eventfd_write(wake_fd, 1)


def _watch(watched: "weakref.ref[Dispatcher]", event_fd: int, wake_fd: int) -> None:
    """Drains a dispatcher's events until `wake_fd` is written, which it closes."""
    # Not select: the descriptor may be above its limit of 1023.
    poll = select.poll()
    poll.register(event_fd, select.POLLIN)
    poll.register(wake_fd, select.POLLIN)
    while wake_fd not in {fd for fd, _ in poll.poll()}:
        dispatcher = watched()
        if dispatcher is not None:
            dispatcher.drain()
        del dispatcher
    os.close(wake_fd)
