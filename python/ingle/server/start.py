"""The start of `ingle serve`: the lock-down's first half, then the model.

Main thread. While the model loads, another thread imports the HTTP server, which takes 0.3 s. What
this file imports is little: it comes before the process sheds its rights.
"""

import contextlib
import importlib
import resource
import signal
import sys
import threading
from collections.abc import Callable
from types import ModuleType

from ingle.engines import Engines
from ingle.exit_codes import ExitCode
from ingle.model_set import ModelSet
from ingle.server.guard import Guard, user_of
from ingle.server.startup_trace import StartupTrace
from ingle.sources import local_set, may_be_remote
from ingle.threads import name_thread


def serve(models: ModelSet, say: Callable[[str], None], *, trace: bool = False) -> ExitCode:
    """Serves until it is stopped; `say` prints text for people. `trace`: see `Lockdown`.

    Blocking. Errors: ConfigError or ModelError before it listens; OSError if it cannot listen.
    """
    raise_file_limit()
    # A terminal shows bars, and the summary has the phases.
    timeline = StartupTrace(models.process.startup_trace, logs=not sys.stderr.isatty())
    with timeline.phase("models made local"):
        # A locked process opens no connection.
        user = user_of(models.process)
        if user is not None and any(may_be_remote(entry.settings) for entry in models):
            from ingle.server.fetch_as import local_set_as

            models = local_set_as(models, user)
        else:
            models = local_set(models)
    settings = models.process
    if settings.user is not None:
        # Perhaps only root can read the packages.
        importlib.import_module(LIFECYCLE)
    with timeline.phase("lock-down, first half"):
        guard = Guard(models, trace, keep=timeline.descriptors())
    try:
        # Python looks at signals between its own instructions only; loading is one long call.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        hangups: list[int] = []
        if guard.keys is not None:
            # The file is read again after the model is loaded.
            signal.signal(signal.SIGHUP, lambda number, frame: hangups.append(number))
        importing = Importing(LIFECYCLE, timeline)
        try:
            engines = Engines.of(
                models,
                guard.event_sockets,
                lambda name, engine: timeline.add_load(name, engine.info["start_up"]),
            )
        finally:
            with timeline.phase("wait for imports"):
                lifecycle = importing.result()
        with engines:
            exit_code: ExitCode = lifecycle.run(
                settings, engines, guard, say, lambda: bool(hangups), timeline
            )
            return exit_code
    finally:
        guard.close()


def raise_file_limit() -> None:
    """Each connection is an open file; the usual soft limit, 1,024, is for users of select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Importing:
    """A module that is imported on a thread of its own."""

    def __init__(self, name: str, timeline: StartupTrace) -> None:
        self._name = name
        self._timeline = timeline
        self._thread: threading.Thread | None = threading.Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # No threads left: the server says so if it needs one.
            self._thread = None

    def result(self) -> ModuleType:
        """The module, once it is there. Errors: those of its import."""
        if self._thread is not None:
            self._thread.join()
        return importlib.import_module(self._name)

    def _run(self) -> None:
        name_thread(IMPORTER)
        timed = self._timeline.phase("imports of the server", IMPORTER)
        with timed, contextlib.suppress(ImportError):  # `result` tries again, and raises it.
            importlib.import_module(self._name)


MOST_FILES = 65536
LIFECYCLE = "ingle.server.lifecycle"
IMPORTER = "ingle-import"
