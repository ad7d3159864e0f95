import asyncio
import gc
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import aiohttp
import pytest

from ingle import _core
from ingle.config import Settings
from ingle.engine import Engine
from ingle.errors import ConfigError, HardeningError
from ingle.exit_codes import ExitCode
from ingle.model_set import ModelEntry, ModelSet
from ingle.server import lifecycle
from ingle.server.guard import Guard
from ingle.server.listen import address, bind


def test_address_is_bound_and_does_not_listen_yet():
    listener = bind(Settings(model="m", port=0))
    with listener:
        host, port = listener.getsockname()
        assert address(listener) == f"http://{host}:{port}"
        with socket.socket() as client:
            assert client.connect_ex((host, port)) != 0


def test_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port}"):
            bind(Settings(model="m", port=port))


@pytest.mark.parametrize("host", ["no such host", "a..b", "a" * 300])
def test_unknown_host_is_named(host):
    with pytest.raises(ConfigError) as refused:
        bind(Settings(model="m", host=host))
    assert str(refused.value).startswith(f"host: cannot resolve {host!r}")


def test_an_ipv6_address_is_shown_in_brackets():
    try:
        listener = bind(Settings(model="m", host="::1", port=0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert address(listener).startswith("http://[::1]:")


def test_unix_socket_that_nobody_serves_is_replaced(tmp_path):
    path = tmp_path / "s"
    bind(Settings(model="m", uds=path)).close()
    with bind(Settings(model="m", uds=path)) as listener:
        assert address(listener) == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o660


def test_unix_socket_in_use_and_other_files_are_left_alone(tmp_path):
    path = tmp_path / "s"
    with bind(Settings(model="m", uds=path)) as listener:
        listener.listen()
        with pytest.raises(OSError, match=f"cannot listen on {path}: another process listens"):
            bind(Settings(model="m", uds=path))
    with pytest.raises(OSError, match="path is longer than 107 bytes"):
        bind(Settings(model="m", uds=Path("/" + "a" * 200)))
    file = tmp_path / "file"
    file.write_text("precious")
    for other, what in (
        (file, "is a file and stays"),
        (tmp_path, "is a folder and stays"),
        (Path("/dev/null"), "is no socket and stays"),
        (tmp_path / "nowhere" / "s", f"no folder {tmp_path / 'nowhere'}"),
    ):
        with pytest.raises(ConfigError, match=f"^uds: .*{what}"):
            bind(Settings(model="m", uds=other))
    assert file.read_text() == "precious"


def test_a_second_start_leaves_the_socket_of_one_that_is_still_loading(tmp_path):
    path = tmp_path / "s"
    settings = Settings(model="m", uds=path)
    with bind(settings) as first:
        made = path.stat().st_ino
        with pytest.raises(OSError, match="is loading its model"):
            bind(settings)
        assert path.stat().st_ino == made
        first.remove()
    assert list(tmp_path.iterdir()) == []
    bind(settings).close()


def test_only_the_own_socket_is_removed_at_the_end(tmp_path):
    path = tmp_path / "s"
    with bind(Settings(model="m", uds=path)) as listener:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            listener.remove()
            assert path.is_socket(), "somebody else's"


def test_a_socket_of_a_program_without_our_lock_is_left_alone(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(OSError, match="another process listens"):
            bind(Settings(model="m", uds=path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_the_lock_goes_with_a_process_that_is_killed(tmp_path):
    path = tmp_path / "s"
    code = (
        "import os, pathlib, sys; from ingle.server.unix_socket import UnixListener;"
        "UnixListener(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, path], check=False)
    assert path.is_socket()
    with bind(Settings(model="m", uds=path)) as listener:
        listener.remove()


@pytest.fixture
async def running(core, monkeypatch):
    """A whole server on the fake core: (its URL, the task that ends with the exit code)."""
    monkeypatch.setattr("ingle.engine._core.Engine", lambda options, sockets, *shared: core)
    monkeypatch.setattr(lifecycle.LastThreads, "exit_after", lambda self, delay_s, code: None)
    settings = Settings(model="m", port=0, shutdown_timeout=20.0, hardening="off")
    ready = asyncio.Event()
    guard = Guard(ModelSet((ModelEntry(name="m", settings=settings),)))
    with Engine("m") as engine, guard.listener as listener:
        server = lifecycle.Server(settings, engine, guard)
        task = asyncio.create_task(server.run(listener, ready.set))
        await ready.wait()
        yield address(listener), task
        if not task.done():  # The test failed.
            task.cancel()
            await asyncio.wait([task], timeout=10)


BODY = {"prompt": "x"}


async def test_death_of_the_engine_ends_every_request_and_the_process(core, running):
    url, task = running
    dead = b'{"error":{"message":"device lost","code":"engine_dead"},"status":500}'

    def die(key, request):
        core.push(key, _core.ERROR, dead)
        core.push(0, _core.ERROR, dead)

    core.on_submit = die
    async with aiohttp.ClientSession(url) as client, client.post("/v1/completions", json=BODY) as r:
        assert r.status == 500
        assert (await r.json())["error"]["message"] == "device lost"
    async with asyncio.timeout(10):
        assert await task == ExitCode.FATAL


async def test_dead_engine_is_noticed_by_health_and_by_submit(core, running):
    url, task = running
    core.health_status = "dead"
    async with aiohttp.ClientSession(url) as client, client.get("/health") as reply:
        assert reply.status == 503
    async with asyncio.timeout(10):
        assert await task == ExitCode.FATAL


async def test_signals_drain_then_stop(core, running):
    url, task = running
    submitted = asyncio.Event()
    core.on_submit = lambda key, request: submitted.set()
    async with aiohttp.ClientSession(url) as client:
        waiting = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await submitted.wait()
        signal.raise_signal(signal.SIGTERM)
        async with client.get("/ready") as reply:
            assert reply.status == 503
            assert reply.headers["Connection"] == "close"
        assert core.is_draining
        assert not core.is_shut_down
        core.push(1, _core.END, b'{"fine":true}')
        assert await (await waiting).json() == {"fine": True}
    async with asyncio.timeout(10):
        assert await task == ExitCode.OK
    assert core.is_shut_down


async def test_client_that_never_takes_the_end_is_cut_off(core, running, monkeypatch):
    monkeypatch.setattr("ingle.server.connection.EOF_S", 0.2)
    url, task = running
    core.on_submit = lambda key, request: core.push(key, _core.END, b"x" * (64 << 20))
    document = b'{"prompt":"x"}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = url.removeprefix("http://").partition(":")
        client.connect((host, int(port)))
        client.sendall(head + document)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(client, 12) == b"HTTP/1.1 200"
        # Nothing more is read until the server has given up and reset the connection.
        poll = select.poll()
        poll.register(client, select.POLLERR | select.POLLHUP)
        assert await asyncio.to_thread(poll.poll, 10_000)
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(10):
        assert await task == ExitCode.OK


async def test_sigterm_works_where_no_thread_can_be_started(core, running, monkeypatch):
    _, task = running

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(10):
        assert await task == ExitCode.OK


class Steps:
    """Models on a GPU, the first of them and a lock-down in one: what was asked of them."""

    info = {"device": "cuda:0 (a card)"}  # noqa: RUF012
    is_on, traces = True, False

    def __init__(self, end=lambda: None):
        self.first = self
        self.steps, self.done, self._end = [], threading.Event(), end
        self.all_recorded = True

    def seal_devices(self):
        self.steps.append("recorded")
        return self.all_recorded

    def end_recording(self):
        self.steps.append("refused")
        self.done.set()
        self._end()


def test_a_gpu_records_its_graphs_after_the_lock_down_and_loses_what_that_needed():
    steps = Steps()
    recorder = lifecycle.Recorder(steps, steps)
    recorder.start()
    assert recorder.is_late
    assert steps.steps == []
    recorder.locked.set()
    assert steps.done.wait(10)
    assert steps.steps == ["recorded", "refused"]


def test_what_recording_needed_stays_allowed_where_a_graph_failed(caplog):
    steps = Steps()
    steps.all_recorded = False
    recorder = lifecycle.Recorder(steps, steps)
    recorder.locked.set()
    recorder._run()
    assert steps.steps == ["recorded"]
    assert "stay allowed: some were not recorded" in caplog.text


def test_a_process_that_cannot_refuse_what_recording_needed_ends(monkeypatch):
    ended = queue.Queue()

    def fail():
        raise HardeningError("the lock-down lets through: ioctl 0x49")

    monkeypatch.setattr(os, "_exit", ended.put)
    steps = Steps(fail)
    recorder = lifecycle.Recorder(steps, steps)
    recorder.start()
    recorder.locked.set()
    assert ended.get(timeout=10) == ExitCode.HARDENING


@pytest.mark.parametrize("change", [{"traces": True}, {"info": {"device": "cpu"}}])
def test_nothing_is_recorded_late_where_there_is_no_gpu_or_all_calls_are_traced(change):
    steps = Steps()
    for name, value in change.items():
        setattr(steps, name, value)
    recorder = lifecycle.Recorder(steps, steps)
    recorder.start()
    assert not recorder.is_late
    assert steps.steps == ["recorded"]


def test_the_garbage_collector_of_a_server_skips_the_start_and_comes_rarely():
    before = gc.get_threshold()
    try:
        lifecycle.collect_rarely()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] == lifecycle.GC_ALLOCATIONS
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
