"""What goes on while the process is locked: keys, sockets, the service manager; no late import."""

import importlib.util
import os
import platform
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from security.test_lesser_kernels import Lesser
from server.worker import TINY, Worker, wait_for

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}


def ask_everything(worker):
    """A request of each kind, some of them wrong."""
    worker.complete()
    worker.complete(stream=True)
    worker.chat("hi", stream=True)
    for path, body in (
        ("/v1/completions", {"prompt": "x", "max_tokens": 2, "guided_json": SCHEMA}),
        ("/v1/completions", {"prompt": "word " * 20_000}),
        ("/v1/completions", {"prompt": 3, "nonsense": 1}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 20, "stream": True}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        ("/v1/embeddings", {"input": "x"}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/nowhere", {}),
    ):
        assert worker.post(path, body).status in (200, 400, 404), path
    for path in ("/v1/models", "/metrics", "/health", "/ready", "/version", "/openapi.json"):
        assert worker.get(path).status == 200
    worker.raw(b"\x00\xff nonsense\r\n\r\n")
    worker.open_stream().close()


def test_no_request_imports_a_module():
    with Worker("--device", "cpu", environment={"PYTHONPROFILEIMPORTTIME": "1"}) as worker:
        before = worker.errors().count("import time:")
        assert before > 100
        ask_everything(worker)
        assert worker.stop() == 0
        late = worker.errors().split("import time:")[before + 1 :]
        assert late == []


def test_packages_of_pythonpath_are_imported_after_the_first_half(tmp_path):
    """The HTTP server's code comes while the model loads, wherever its packages are."""
    name = "aiosignal"
    origin = Path(importlib.util.find_spec(name).origin).parent
    shutil.copytree(origin, tmp_path / name)
    marked = tmp_path / name / "__init__.py"
    marked.write_text(f'{marked.read_text()}\nimport sys\nsys.stderr.write("of PYTHONPATH\\n")\n')
    paths = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    with Worker("--device", "cpu", environment={"PYTHONPATH": paths}) as worker:
        assert worker.stop() == 0
        assert "of PYTHONPATH" in worker.errors()


class Traced(Worker):
    """A server that prints what the tight filter would refuse."""

    def command(self, model):
        trace = [sys.executable, "-m", "ingle", "security", "trace", str(model)]
        return [*trace, "--port", "0"]


def test_no_request_needs_a_system_call_beyond_the_list():
    with Traced("--device", "cpu") as worker:
        assert "filter: traced only" in worker.summary
        ask_everything(worker)
        assert worker.stop() == 0
        assert [line for line in worker.errors().splitlines() if "trace: " in line] == []


@pytest.mark.parametrize("kernel", ["this", "without landlock"])
def test_a_model_of_links_is_served(tmp_path, kernel):
    """As in a Hugging Face cache; one link leads nowhere and one to itself."""
    blobs, model = tmp_path / "models--a--b/blobs", tmp_path / "models--a--b/snapshots/1"
    shutil.copytree(TINY, blobs)
    model.mkdir(parents=True)
    for file in blobs.iterdir():
        (model / file.name).symlink_to(file)
    (model / "nowhere").symlink_to(tmp_path / "nothing")
    (model / "loop").symlink_to(model / "loop")
    if kernel == "this":
        server = Worker("--device", "cpu", model=model)
    elif platform.machine() == "x86_64":
        server = Lesser("landlock", "--device", "cpu", model=model)
    else:
        pytest.skip("numbers of x86-64")
    with server as worker:
        assert worker.complete()["choices"][0]["finish_reason"] == "length"
        assert worker.stop() == 0, worker.errors()


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("tenant:first admin\n")
    path.chmod(0o600)
    return path


def status_with(worker, key):
    headers = {"Authorization": f"Bearer {key}"}
    return worker.get("/v1/models", headers=headers).status


def test_a_key_file_that_was_replaced_is_read_again(key_file):
    with Worker("--device", "sim", "--api-key-file", key_file) as worker:
        assert (status_with(worker, "first"), status_with(worker, "second")) == (200, 401)
        # As editors and configuration tools do it: a new file takes the old one's name.
        other = key_file.with_name("other")
        other.write_text("tenant:second admin\n")
        other.chmod(0o600)
        other.rename(key_file)
        worker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: status_with(worker, "second") == 200, 10, worker.errors)
        assert status_with(worker, "first") == 401
        key_file.chmod(0o644)
        worker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "others can read" in worker.errors(), 10, worker.errors)
        assert status_with(worker, "second") == 200
        assert worker.stop() == 0


def test_the_socket_goes_however_the_worker_ends(tmp_path):
    path = tmp_path / "s"
    for number in (signal.SIGTERM, signal.SIGKILL):
        with Worker("--device", "sim", "--uds", path) as worker:
            worker.complete()
            worker.stop(number)
            wait_for(lambda: list(tmp_path.iterdir()) == [], 10, lambda: os.listdir(tmp_path))


def test_systemd_learns_that_the_worker_is_ready_lives_and_stops(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with Worker("--device", "sim", environment=environment) as worker:
            assert manager.recv(100) == b"READY=1"
            assert {manager.recv(100), manager.recv(100)} == {b"WATCHDOG=1"}
            assert worker.stop() == 0
        while (state := manager.recv(100)) != b"STOPPING=1":
            assert state == b"WATCHDOG=1"
