"""[2] Threads for work that may take long in the core (grammars, long prompts).

Event loop only; the work runs on the threads. A server starts them before it is ready, so no
request needs a new thread. Tenants take turns, and one tenant never has all threads: a tenant that
sends many slow requests delays only itself.
"""

import asyncio
import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ingle.errors import ConfigError, OverloadedError
from ingle.server.headroom import Headroom
from ingle.threads import thread_pool

T = TypeVar("T")


class Turns:
    """A thread pool whose threads are shared between tenants."""

    def __init__(self, headroom: Headroom, num_threads: int = 8) -> None:
        self._headroom = headroom
        self._threads = thread_pool(num_threads, "ingle-submit")
        self._num_threads = num_threads
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """In the order of their turns. A tenant that has just had one is last."""
        self._running: dict[str, int] = {}

    def start(self) -> None:
        """Starts all threads. Blocks briefly. Errors: ConfigError if the system gives too few."""
        start_threads(self._threads, self._num_threads, "ingle-submit")

    def close(self) -> None:
        """Ends the threads, each after its current work."""
        self._threads.shutdown(wait=False)

    async def run(self, tenant: str, num_bytes: int, work: Callable[..., T], *arguments: Any) -> T:
        """Calls `work`, which may take `num_bytes`, on a thread when it is the tenant's turn.

        A caller that is cancelled leaves the queue; work that has begun goes on without it.
        Errors: those of `work`; OverloadedError 503 if there is no thread or not enough memory.
        """
        await self.take(tenant)
        return await asyncio.shield(self.call(tenant, num_bytes, work, *arguments))

    async def take(self, tenant: str) -> None:
        """Waits for the tenant's turn; `call` must follow. A cancelled caller leaves the queue."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            self._leave(tenant, turn)
            raise

    def call(
        self, tenant: str, num_bytes: int, work: Callable[..., T], *arguments: Any
    ) -> "asyncio.Future[T]":
        """Calls `work`, which may take `num_bytes`, on a thread, in a turn already taken.

        Its end returns the turn. Errors: OverloadedError 503 if there is no thread or not enough
        memory.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._end, tenant)
            stack.enter_context(self._headroom.reserve(tenant, num_bytes))
            done = in_thread(self._threads, work, *arguments)
            until_done = stack.pop_all()
        # Not when the caller leaves: the work continues and keeps its memory.
        done.add_done_callback(lambda _: until_done.close())
        return done

    def _next(self) -> None:
        """Gives free threads to the tenants whose turn it is."""
        while sum(self._running.values()) < self._num_threads:
            ready = (name for name in self._waiting if self._may_begin(name))
            tenant = min(ready, key=lambda name: self._running.get(name, 0), default=None)
            if tenant is None:
                return
            turns = self._waiting[tenant]
            turn = turns.popleft()
            self._waiting.move_to_end(tenant)
            if not turns:
                del self._waiting[tenant]
            self._running[tenant] = self._running.get(tenant, 0) + 1
            turn.set_result(None)

    def _may_begin(self, tenant: str) -> bool:
        return self._running.get(tenant, 0) < max(1, self._num_threads - 1)

    def _leave(self, tenant: str, turn: "asyncio.Future[None]") -> None:
        if turn.done() and not turn.cancelled():
            self._end(tenant)  # The turn came at the same time as the cancellation.
            return
        turns = self._waiting.get(tenant)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[tenant]

    def _end(self, tenant: str) -> None:
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        self._next()


def in_thread(
    threads: ThreadPoolExecutor | None, work: Callable[..., T], *arguments: Any
) -> "asyncio.Future[T]":
    """Calls `work` on a thread; None means the loop's own pool.

    Errors: OverloadedError 503 if the system gives none.
    """
    try:
        return asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
    except RuntimeError as error:  # The pool could not start a thread.
        raise OverloadedError(f"no thread for this request: {error}", 1.0, 503) from None


def start_threads(threads: ThreadPoolExecutor, count: int, name: str) -> None:
    """Starts all threads of a pool, which would start one at a time as work comes.

    Errors: ConfigError that names the threads if the system gives too few.
    """
    go_on = threading.Event()
    started: list[Future[bool]] = []
    try:
        # A pool starts a thread only while no other is idle, so these wait for each other.
        started.extend(threads.submit(go_on.wait) for _ in range(count))
    except RuntimeError as error:
        raise ConfigError(
            f"cannot start the {count} threads {name}: {error}; the limit of threads (pids.max of "
            "the cgroup, ulimit -u) or of address space may be reached"
        ) from None
    finally:
        go_on.set()
    for each in started:
        each.result()
