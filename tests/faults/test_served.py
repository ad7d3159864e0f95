"""A server whose device fails: what clients see, and the code that the process ends with."""

import contextlib
import json
import re
import subprocess
import threading

import pytest

from faults.device import COMPILER, ILLEGAL_ADDRESS, OUT_OF_MEMORY, Table, build
from server.worker import MODELS, TINY, Worker, http_request, wait_for

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

SIZES = ("--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--max-model-len", "1024")


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path / "table")


@pytest.fixture
def start(tmp_path, table):
    """Starts a locked server on the libraries of libraries.c."""
    library = build(tmp_path)
    environment = {"LD_PRELOAD": str(library), "INGLE_FAULT_TABLE": str(table.path)}
    libraries = ("--nvrtc-library", library, "--cublaslt-library", library)
    cache = ("--cache-dir", tmp_path / "cache")

    def start_it(*flags, step_us=0, model=TINY):
        environ = environment | {"INGLE_FAULT_STEP_US": str(step_us)}
        every = ("--device", "cuda", *SIZES, *libraries, *cache, *flags)
        return Worker(*every, model=model, environment=environ)

    return start_it


class Reader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, worker):
        super().__init__(daemon=True)
        body = {"prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 900}
        self._connection = worker.connect()
        self._connection.sendall(http_request("POST", "/v1/completions", json.dumps(body).encode()))
        self.begun = threading.Event()
        self.data = b""

    def run(self):
        while part := self._connection.recv(65536):
            self.data += part
            self.begun.set()
            if self.data.endswith(b"0\r\n\r\n"):
                break
        self._connection.close()


def test_a_lost_device_ends_every_stream_with_an_error_and_the_process_with_70(start, table):
    with start(step_us=10_000) as worker:
        hardening = worker.health()["hardening"]
        assert "filter" in hardening["on"], hardening
        readers = [Reader(worker) for _ in range(3)]
        for reader in readers:
            reader.start()
        assert all(reader.begun.wait(20) for reader in readers)
        table.fail("cuMemcpyHtoDAsync_v2", 1, ILLEGAL_ADDRESS)
        assert worker.wait() == 70, worker.errors()
        for reader in readers:
            reader.join(20)
            assert b'data: {"error":' in reader.data, reader.data[-500:]
        assert "Traceback" not in worker.errors()


def test_a_step_that_fails_ends_its_requests_and_no_others(start, table):
    with start() as worker:
        table.fail("cuMemcpyHtoDAsync_v2", 1, OUT_OF_MEMORY)
        failed = worker.post("/v1/completions", {"prompt": "x", "max_tokens": 4})
        assert failed.status == 500
        assert "cuMemcpyHtoDAsync" in failed.error["message"]
        assert worker.complete(max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("cuMemCreate", "MiB free"),
        ("cuMemHostAlloc", "cuMemHostAlloc"),
        ("nvrtcCompileProgram", "made to fail"),
        ("cublasLtCreate", "cublasLtCreate"),
    ],
)
def test_a_load_that_fails_ends_with_3_and_names_the_call(start, table, call, text):
    table.fail(call, 1, OUT_OF_MEMORY)
    with pytest.raises(AssertionError, match="no start") as failure:
        start().__exit__()
    assert text in str(failure.value)
    assert "Traceback (most recent call last)" not in str(failure.value)
    assert table.alive() == {}


def test_graphs_that_fail_are_reported_and_the_server_serves(start, table):
    # The first graph, and its second try.
    table.fail("cuGraphInstantiateWithFlags", 1, OUT_OF_MEMORY)
    table.fail("cuStreamEndCapture", 2, OUT_OF_MEMORY)
    with start() as worker:
        assert worker.complete(max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
        wait_for(lambda: graphs(worker, "waiting") == 0, 20, worker.errors)
        assert graphs(worker, "failed") == 1
        stays = "the calls that record graphs stay allowed"
        wait_for(lambda: stays in worker.errors(), 20, worker.errors)
        assert worker.stop() == 0, worker.errors()
        assert "launched kernel by kernel" in worker.errors()


def test_a_graph_that_fails_once_is_recorded_by_the_second_try(start, table):
    table.fail("cuGraphInstantiateWithFlags", 1, OUT_OF_MEMORY)
    with start() as worker:
        wait_for(lambda: graphs(worker, "waiting") == 0, 20, worker.errors)
        assert graphs(worker, "failed") == 0
        assert graphs(worker, "ready") > 0
        assert worker.stop() == 0, worker.errors()


def graphs(worker, state):
    """How many graphs are in this state."""
    metrics = worker.get("/metrics").body.decode()
    found = re.search(rf'^ingle:device_graphs{{.*state="{state}"}} (\d+)$', metrics, re.M)
    assert found, metrics
    return int(found[1])


def test_the_start_says_that_4_bit_weights_are_widened(start):
    with start(model=MODELS / "llama-w4a16") as worker:
        assert re.search(r"14 of 14 4-bit tensors run as Bf16", worker.summary), worker.summary


@pytest.fixture
def mount(tmp_path):
    """Mounts an empty file system with these options; skips where this user may not."""
    with contextlib.ExitStack() as stack:

        def mount_it(options):
            folder = tmp_path / "cache"
            folder.mkdir(mode=0o700)
            command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", folder]
            if subprocess.run(command, capture_output=True).returncode != 0:
                pytest.skip("this user may not mount")
            stack.callback(subprocess.run, ["umount", folder], check=True)

        yield mount_it


@pytest.mark.parametrize(
    ("options", "reason"),
    [("ro", "Read-only file system"), ("size=64k,nr_inodes=4", "No space left on device")],
)
def test_a_cache_folder_that_takes_nothing_is_named_and_the_server_serves(
    start, mount, options, reason
):
    mount(options)
    with start() as worker:
        assert re.search(rf"are not kept.*cache folder .*: {reason}", worker.summary)
        assert worker.complete(max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
        assert worker.stop() == 0, worker.errors()


def test_a_cache_folder_that_cannot_be_made_is_named_and_the_server_serves(start, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with start() as worker:
        assert re.search(r"are not kept.*cache folder ", worker.summary)
        assert worker.complete(max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
        assert worker.stop() == 0, worker.errors()
