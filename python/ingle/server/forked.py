"""A process of the worker's own, forked while it has one thread. Main thread."""

import os
import signal
import sys
from collections.abc import Callable

from ingle.threads import name_thread


def fork(run: Callable[[], None]) -> int:
    """Calls `run` in a new process, which ends with it. Returns its id.

    What it raises is printed, and its code is then 1.

    The new process never returns into the caller's code, and the caller's buffers and exit handlers
    do not run in it: it must not go on as a second server.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        run()
        code = 0
    except BaseException:  # noqa: BLE001 # Of whatever kind, it ends here.
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def serve_the_worker(name: str) -> None:
    """In a new process that stays beside the worker: takes this name, and leaves signals to it.

    The worker lets the process end, by their pipe.
    """
    name_thread(name)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
