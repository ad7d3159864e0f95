"""The life of a serving process once its model is loaded: listen, serve, drain, end.

Main thread and its loop. start.py has bound the address before the load, so that a taken port fails
at once. The server listens once the model can answer. SIGTERM and SIGINT start the drain: new
requests get 503; running ones may finish until the deadline, then they get an error event. A second
signal ends them at once. If the engine dies, the process exits with its own code. SIGHUP reloads
the key file; without a key file it does the same as SIGTERM.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop
from aiohttp import web

from ingle.config import Settings, with_flags
from ingle.engine import Engine
from ingle.engines import Engines
from ingle.errors import ConfigError, HardeningError, InternalError
from ingle.exit_codes import ExitCode
from ingle.hardening import Lockdown
from ingle.memory import give_back_memory
from ingle.origins import parse_origins
from ingle.places import may_use_gpu
from ingle.server.admin import Admin
from ingle.server.app import create_app
from ingle.server.auth import ApiKeys
from ingle.server.connection import Connection
from ingle.server.guard import Guard
from ingle.server.listen import address
from ingle.server.models import Models
from ingle.server.off_loop import start_body_thread
from ingle.server.startup_trace import StartupTrace
from ingle.server.state import STATE, ServerState
from ingle.server.summary import summary
from ingle.server.tracing import Tracer
from ingle.server.turns import in_thread, start_threads
from ingle.threads import name_thread, thread_pool

log = logging.getLogger("ingle.server")


def run(
    settings: Settings,
    engines: Engine | Engines,
    guard: Guard,
    say: Callable[[str], None],
    was_hung_up: Callable[[], bool],
    timeline: StartupTrace,
) -> ExitCode:
    """Serves what is loaded until it is stopped. Blocking.

    `was_hung_up`: whether SIGHUP came before the loop could take it.
    """
    with timeline.phase("server made"):
        loop = uvloop.new_event_loop()
        server = Server(settings, engines, guard)
    models = server.state.models
    recorder = Recorder(models, guard.lockdown)

    def on_ready() -> None:
        recorder.start()
        timeline.write()
        guard.lock(models.lock_info(), recording=recorder.is_late)
        recorder.locked.set()
        if was_hung_up():
            server.read_keys()
        shown = str(guard.keys or ApiKeys({}))
        guard.notifier.send("READY=1")
        where = address(guard.listener)
        say(summary(models, where, shown, guard.lockdown, timeline.age_s()))

    try:
        return loop.run_until_complete(to_the_end(server.run(guard.listener, on_ready)))
    finally:
        loop.close()


async def to_the_end(run: Coroutine[Any, Any, ExitCode]) -> ExitCode:
    """Runs the server, and what asyncio.run does at the end in the same run of the loop.

    A second run would need system calls that the locked process no longer has.
    """
    try:
        return await run
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()


class Server:
    """One server from listening to its end. Event loop only."""

    def __init__(self, settings: Settings, engines: Engine | Engines, guard: Guard) -> None:
        self._grace_s = settings.shutdown_timeout
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._fatal = False
        self._guard = guard
        self._last = LastThreads()
        self._max_body_bytes = settings.max_body_bytes
        exporter, ratio = guard.exporter, settings.trace_sample_ratio
        tracer = None if exporter is None else Tracer(exporter.send, ratio)
        self._app = create_app(
            engines,
            api_keys=guard.keys,
            unknown_fields=settings.unknown_fields,
            max_body_bytes=settings.max_body_bytes,
            allowed_origins=parse_origins(settings.allowed_origins or ""),
            on_fatal=self._on_fatal,
            lockdown=guard.lockdown,
            tracer=tracer,
        )

    @property
    def state(self) -> ServerState:
        """What the handlers share."""
        return self._app[STATE]

    async def run(self, listener: socket.socket, on_ready: Callable[[], None]) -> ExitCode:
        """Listens on a bound socket until a signal or the engine's death, then ends everything.

        `on_ready` is called once clients can connect, and before the loop looks at any of them.
        """
        loop = asyncio.get_running_loop()
        # A process at its limit of threads must still serve, and end.
        self.state.turns.start()
        start_body_thread()
        self._last.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        on_hangup = self._on_signal if self._guard.keys is None else self.read_keys
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
        runner = web.AppRunner(
            self._app, handler_cancellation=True, access_log=None, shutdown_timeout=FLUSH_S
        )
        await runner.setup()
        manager = runner.server
        if manager is None:
            raise InternalError("the application did not start")
        server = await loop.create_server(
            lambda: Connection(manager, loop, self._max_body_bytes, self.state.headroom),
            sock=listener,
            backlog=BACKLOG,
        )
        close_admin = await self._open_admin(loop)
        collect_rarely()
        # What loading has freed would stay with the allocator.
        give_back_memory()
        on_ready()
        watchdog = asyncio.create_task(self._guard.notifier.watchdog(self._is_well))
        await self._stop.wait()
        self._guard.notifier.send("STOPPING=1")
        await self._drain()
        watchdog.cancel()
        server.close()
        await runner.cleanup()
        await close_admin()
        return ExitCode.FATAL if self._fatal else ExitCode.OK

    async def _open_admin(
        self, loop: asyncio.AbstractEventLoop
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Listens on the admin socket, if there is one; what it returns ends that."""

        async def nothing() -> None:
            pass

        if self._guard.admin is None:
            return nothing
        runner = web.AppRunner(Admin(self.state).app(), access_log=None, shutdown_timeout=FLUSH_S)
        await runner.setup()
        manager = runner.server
        if manager is None:
            raise InternalError("the admin application did not start")
        # Without this reference the loop would close the server at once.
        server = await loop.create_unix_server(manager, sock=self._guard.admin)

        async def close() -> None:
            server.close()
            await runner.cleanup()

        return close

    async def _drain(self) -> None:
        state = self.state
        state.draining = True
        state.models.start_drain()
        log.info(
            "shutting down: %d running requests may take up to %g s", state.count(), self._grace_s
        )
        waits = [asyncio.ensure_future(self._now.wait()), asyncio.ensure_future(state.idle())]
        await asyncio.wait(waits, timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        # The core sends an error to every waiting client. A hanging device must not block the exit.
        self._last.exit_after(HANG_S, ExitCode.FATAL)
        await self._last.run(state.models.shutdown)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(state.idle(), FLUSH_S)

    def read_keys(self) -> None:
        """Reloads the key file. A bad file changes nothing.

        Running streams continue, even if their key is gone.
        """
        try:
            self.state.keys = self._guard.read_keys()
        except ConfigError as error:
            log.error(
                "cannot reload the key file, the keys stay as they were: %s", with_flags(str(error))
            )
        else:
            log.info("reloaded the key file: serving %s", self.state.keys)

    def _is_well(self) -> bool:
        status = self.state.models.health()["status"]
        return status in ("ok", "asleep", "draining") and not self._fatal

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._now.set()
        self._stop.set()

    def _on_fatal(self, reason: str) -> None:
        self._fatal = True
        log.critical("the engine has died: %s", reason)
        self._stop.set()
        self._now.set()


def collect_rarely() -> None:
    """Makes the garbage collector cheap for a server that has just started.

    Objects from start-up live as long as the process: the collector can skip them. Requests free
    their objects without it (tests/unit/server/test_request_cost.py holds that), so it only has to
    find rare cycles, such as those of aiohttp's errors. With Python's default of 700 allocations,
    200 streams take 2.5 % more instructions a token.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS)


class Recorder:
    """Lets a GPU record its graphs while the server serves, then ends what only that needed."""

    def __init__(self, models: Models, lockdown: Lockdown) -> None:
        self._models = models
        self._lockdown = lockdown
        self.is_late = lockdown.is_on and may_use_gpu(models.first.info["device"])
        if lockdown.traces:
            # A trace is of what a worker needs when all is recorded.
            self.is_late = False
        self.locked = threading.Event()

    def start(self) -> None:
        """Starts the thread, while there can be one. Errors: ConfigError if there is none left."""
        if not self.is_late:
            if self._lockdown.is_on:
                self._models.seal_devices()
            return
        start_thread(threading.Thread(target=self._run, name="ingle-recorder", daemon=True))

    def _run(self) -> None:
        name_thread("ingle-recorder")
        self.locked.wait()
        if not self._models.seal_devices():
            log.warning("the calls that record graphs stay allowed: some were not recorded")
            return
        try:
            self._lockdown.end_recording()
        except HardeningError as error:
            log.critical("%s", error)
            os._exit(int(ExitCode.HARDENING))


class LastThreads:
    """Threads for the end of the process. Started early, because later there may be none left."""

    def __init__(self) -> None:
        self._shutdown = thread_pool(1, "ingle-shutdown")
        self._armed = threading.Event()
        self._exit: tuple[float, ExitCode] = (0.0, ExitCode.FATAL)
        self._timer = threading.Thread(target=self._wait, name="ingle-exit", daemon=True)

    def start(self) -> None:
        """Errors: ConfigError if the system gives no thread."""
        start_threads(self._shutdown, 1, "ingle-shutdown")
        start_thread(self._timer)

    async def run(self, work: Callable[[], None]) -> None:
        """Calls `work` on the shutdown thread."""
        await in_thread(self._shutdown, work)
        self._shutdown.shutdown(wait=False)

    def exit_after(self, delay_s: float, code: ExitCode) -> None:
        """Ends the process after `delay_s`, even if it hangs. Once."""
        self._exit = (delay_s, code)
        self._armed.set()

    def _wait(self) -> None:
        name_thread("ingle-exit")
        self._armed.wait()
        delay_s, code = self._exit
        time.sleep(delay_s)
        os._exit(int(code))


def start_thread(thread: threading.Thread) -> None:
    """Errors: ConfigError if the system gives no thread."""
    try:
        thread.start()
    except RuntimeError as error:
        raise ConfigError(f"cannot start the thread {thread.name}: {error}") from None


BACKLOG = 4096
GC_ALLOCATIONS = 10_000
"""So many more containers than are freed make the collector run; one 404 leaves a cycle of 38."""
FLUSH_S = 2.0
"""Time for handlers to write their last bytes after every request has ended."""
HANG_S = 10.0
"""If the engine's threads have not ended after this time, the process ends anyway."""
