"""kill -9 at random moments under load: clients see an end, and the server starts again."""

import contextlib
import json
import random
import threading
import time
from pathlib import Path

import pytest

from server.worker import Worker, http_request

END_LIMIT_S = 1.0
"""From the kill until every client knows."""
NUM_CLIENTS = 8


class Client(threading.Thread):
    """Reads one endless stream; remembers when it ended and whether it had begun."""

    def __init__(self, worker):
        super().__init__(daemon=True)
        body = {"prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 1500}
        self.connection = worker.connect()
        data = http_request("POST", "/v1/completions", json.dumps(body).encode())
        self.connection.sendall(data)
        self.begun = threading.Event()
        self.ended_at = None

    def run(self):
        # A reset is an end too.
        with contextlib.suppress(OSError):
            while self.connection.recv(65536):
                self.begun.set()
        self.ended_at = time.monotonic()
        self.connection.close()


def names(process, text):
    """Whether a process has this text in its command line."""
    with contextlib.suppress(OSError):  # It has ended meanwhile.
        return str(text).encode() in (process / "cmdline").read_bytes()
    return False


def processes_that_name(text):
    """Folders in /proc of the processes with this text in their command line."""
    folders = Path("/proc").iterdir()
    return [folder for folder in folders if folder.name.isdigit() and names(folder, text)]


def kill_and_restart(count, seed, tmp_path):
    """What a supervisor does: starts the server, and again whenever it has died."""
    choose = random.Random(seed)
    uds = tmp_path / "ingle.sock"
    for number in range(count):
        # The socket of the one that was killed must be in nobody's way.
        with Worker("--device", "sim", "--uds", uds) as worker:
            assert worker.complete(max_tokens=2)["choices"], f"seed {seed}, start {number}"
            clients = [Client(worker) for _ in range(NUM_CLIENTS)]
            for client in clients:
                client.start()
            assert clients[0].begun.wait(10)
            time.sleep(choose.random() * 0.2)
            worker.process.kill()
            killed_at = time.monotonic()
            for client in clients:
                client.join(10)
                assert client.ended_at is not None, f"seed {seed}, kill {number}: no end"
                assert client.ended_at - killed_at < END_LIMIT_S
            worker.process.wait()
    deadline = time.monotonic() + 5
    while left := processes_that_name(uds):
        assert time.monotonic() < deadline, f"processes outlive their server: {left}"
        time.sleep(0.05)
    assert not uds.exists(), "the keeper removes the socket"


def test_a_killed_server_ends_its_streams_and_starts_again(tmp_path):
    kill_and_restart(3, 1, tmp_path)


@pytest.mark.long
def test_two_hundred_kills(tmp_path):
    kill_and_restart(200, 2, tmp_path)
