"""Reports to systemd that the worker is ready, stopping or alive (sd_notify(3)). Event loop.

The socket is opened before the lock-down, which leaves the process no way to open another.
"""

import contextlib
import os
import socket
from collections.abc import Callable


class Notifier:
    """The service manager's socket, if there is one; without one every call does nothing."""

    def __init__(self) -> None:
        """Errors: OSError if there is a socket that cannot be reached."""
        self._socket: socket.socket | None = None
        self.watchdog_s = watchdog_interval()
        address = os.environ.get("NOTIFY_SOCKET")
        if not address:
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        # A name that starts with @ is an abstract one.
        self._socket.connect("\0" + address[1:] if address.startswith("@") else address)

    def descriptors(self) -> list[int]:
        """What the lock-down must leave open."""
        return [] if self._socket is None else [self._socket.fileno()]

    def send(self, state: str) -> None:
        """One message, such as READY=1. A manager that takes none now loses it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(state.encode())

    async def watchdog(self, is_well: Callable[[], bool]) -> None:
        """Says that the worker lives, as often as systemd wants and only while `is_well`."""
        import asyncio  # By now it is there; the start of the process does not wait for it.

        while self._socket is not None and self.watchdog_s is not None:
            if is_well():
                self.send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)


def watchdog_interval() -> float | None:
    """Seconds within which systemd wants to hear from this process; None if it does not."""
    owner = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if owner != str(os.getpid()) or not microseconds.isdecimal():
        return None
    return int(microseconds) / 1e6 or None
