"""The keeper: a small process that reads the key file and removes the Unix socket for the worker.

The locked worker can open and remove no file. The keeper is forked while there is one thread, has
a filter of its own (security/policy/keeper.toml), and handles no byte of a client. It ends when the
worker does, however that happens, and then removes the socket.
"""

import contextlib
import json
import socket
from collections.abc import Sequence
from pathlib import Path

from ingle.errors import ConfigError, IngleError
from ingle.hardening import confine_keeper
from ingle.server.auth import ApiKeys, parse_keys, read_secret
from ingle.server.forked import fork, serve_the_worker
from ingle.server.unix_socket import UnixListener


class Keeper:
    """The worker's end. Main thread."""

    def __init__(self, key_file: Path | None, listeners: Sequence[socket.socket]) -> None:
        """Forks. The process must have one thread."""
        self._key_file = key_file
        self._pipe, other = socket.socketpair()
        fork(lambda: self._keep(other, listeners))
        other.close()
        for each in unix_sockets(listeners):
            each.leave_lock()
        self._pipe.settimeout(ANSWER_S)

    def fileno(self) -> int:
        """The descriptor of the worker's end."""
        return self._pipe.fileno()

    def read_keys(self) -> ApiKeys:
        """The key file as it is now. Blocks briefly. Errors: ConfigError, as `read_key_file`."""
        if self._key_file is None:
            raise ConfigError("api_key_file: there is none")
        try:
            self._pipe.sendall(b"k")
            answer = json.loads(self._receive())
        except (OSError, ValueError) as error:
            raise ConfigError(f"api_key_file: cannot read {self._key_file}: {error}") from error
        if "error" in answer:
            raise ConfigError(answer["error"])
        return parse_keys(self._key_file, answer["text"])

    def close(self) -> None:
        """Lets the keeper end and waits until it has: the socket's file is gone then."""
        # It may have been killed.
        with contextlib.suppress(OSError):
            self._pipe.shutdown(socket.SHUT_WR)
            while self._pipe.recv(CHUNK_BYTES):
                pass
        self._pipe.close()

    def _keep(self, pipe: socket.socket, listeners: Sequence[socket.socket]) -> None:
        """The keeper itself, until the worker has gone."""
        self._pipe.close()
        serve_the_worker("ingle-keeper")
        # Only the worker may accept connections. A Unix socket's lock stays held.
        for each in listeners:
            socket.socket.close(each)
        file = self._key_file
        places = [] if file is None else [file.parent, file.resolve().parent]
        sockets = [each.folder for each in unix_sockets(listeners)]
        confine_keeper(read=places, write=sockets)
        while pipe.recv(1):
            answer = json.dumps(_answer(file)).encode()
            pipe.sendall(b"%d\n%s" % (len(answer), answer))
        for each in unix_sockets(listeners):
            each.remove()

    def _receive(self) -> bytes:
        """One answer: its length in a line, then its bytes."""
        data = b""
        while b"\n" not in data:
            data += self._more()
        length, _, data = data.partition(b"\n")
        while len(data) < int(length):
            data += self._more()
        return data

    def _more(self) -> bytes:
        part = self._pipe.recv(CHUNK_BYTES)
        if not part:
            raise OSError("the process that reads it has ended")
        return part


def unix_sockets(listeners: Sequence[socket.socket]) -> list[UnixListener]:
    """Those that have a file."""
    return [each for each in listeners if isinstance(each, UnixListener)]


def _answer(key_file: Path | None) -> dict[str, str]:
    if key_file is None:
        return {"error": "api_key_file: there is none"}
    try:
        return {"text": read_secret(key_file)}
    except IngleError as error:
        return {"error": str(error)}


ANSWER_S = 5.0
"""A key file on a dead network drive must not stop the event loop for longer."""
CHUNK_BYTES = 65536
