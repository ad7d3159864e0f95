"""[1] The Unix socket of `--uds`: one process owns it at a time, also while a model loads.

Main thread. A bound socket does not listen until the model can answer, so a connection attempt
cannot tell whether the socket is in use. A lock on a file beside it can, and the kernel releases
the lock however the process ends.
"""

import fcntl
import os
import socket
from pathlib import Path

from ingle.errors import ConfigError


class UnixListener(socket.socket):
    """A bound Unix socket that holds the lock on its path until it is closed."""

    def __init__(self, path: Path) -> None:
        """Binds, with access for owner and group; an abandoned socket is replaced.

        Errors: ConfigError or OSError says what is in the way.
        """
        check_place(path)
        self._path, self._lock_path = path, path.with_name(path.name + ".lock")
        self._lock_fd = lock(path, self._lock_path)
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if is_served(path):
                raise OSError(TAKEN)
            path.unlink(missing_ok=True)
            self.bind(str(path))
            path.chmod(0o660)
            self._place = place(path)
        except OSError as error:
            self._lock_path.unlink(missing_ok=True)
            self.close()
            raise OSError(f"cannot listen on {path}: {error.strerror or error}") from error

    @property
    def folder(self) -> Path:
        """Where the socket and its lock file are."""
        return self._path.parent

    def leave_lock(self) -> None:
        """Leaves lock and removal to a forked process, which has the same lock open."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def remove(self) -> None:
        """Removes the socket file, unless another process has replaced it."""
        if self._lock_fd is None:
            return
        if place(self._path) == self._place:
            self._path.unlink(missing_ok=True)
        self._lock_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the socket and releases the lock."""
        super().close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    _lock_fd: int | None = None


def check_place(path: Path) -> None:
    """Errors: ConfigError or OSError if no socket can be at `path`."""
    if path.exists() and not path.is_socket():
        kind = "a folder" if path.is_dir() else "a file" if path.is_file() else "no socket"
        raise ConfigError(f"uds: {path} is {kind} and stays as it is; name a path for a new socket")
    if not path.parent.is_dir():
        raise ConfigError(f"uds: no folder {path.parent}")
    if len(os.fsencode(path)) > MOST_PATH_BYTES:
        raise OSError(f"cannot listen on {path}: the path is longer than {MOST_PATH_BYTES} bytes")


def lock(path: Path, lock_path: Path) -> int:
    """An open lock file that no other process holds.

    Errors: OSError if one does: it serves `path` or is loading its model.
    """
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(lock_path, flags, 0o600)
        except OSError as error:
            raise OSError(f"cannot listen on {path}: {lock_path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise OSError(f"cannot listen on {path}: {TAKEN}") from None
        made = os.fstat(fd)
        if place(lock_path) == (made.st_dev, made.st_ino):
            return fd
        # The last holder removed the file after we had opened it: try again with the new one.
        os.close(fd)


TAKEN = "another process listens there, or is loading its model"
MOST_PATH_BYTES = 107
"""unix(7): sun_path has 108, with a zero at the end."""


def is_served(path: Path) -> bool:
    """Whether any process accepts connections on this socket, with or without our lock."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def place(path: Path) -> tuple[int, int] | None:
    """What identifies the file at `path`; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
