"""A worker sleeps and wakes by its admin socket, and nothing else reaches that socket."""

import contextlib
import http.client
import json
import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from server.worker import Worker


class AdminSocket:
    """A client of the admin socket."""

    def __init__(self, path):
        self.path = path

    def ask(self, method, path):
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(30)
        raw.connect(str(self.path))
        connection = http.client.HTTPConnection("admin")
        connection.sock = raw
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@pytest.fixture
def place(tmp_path):
    return tmp_path / "admin.sock"


def test_a_sleeping_worker_refuses_says_so_and_wakes(place):
    with Worker("--device", "sim", "--sim-speed", "inf", "--admin-uds", place) as worker:
        admin = AdminSocket(place)
        assert stat.S_IMODE(place.stat().st_mode) == 0o660
        prompt = list(range(5, 205))
        for _ in range(2):
            usage = worker.complete(prompt)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0
        assert admin.ask("GET", "/is_sleeping") == (200, {"is_sleeping": False})
        assert admin.ask("POST", "/sleep?level=1") == (200, {"is_sleeping": True})
        assert admin.ask("GET", "/is_sleeping") == (200, {"is_sleeping": True})
        refused = worker.post("/v1/completions", {"prompt": "x"})
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert "asleep" in refused.json["error"]["message"]
        health = worker.get("/health")
        assert (health.status, health.json["status"]) == (200, "asleep")
        assert worker.get("/ready").status == 503
        assert admin.ask("POST", "/wake_up") == (200, {"is_sleeping": False})
        assert worker.get("/ready").status == 200
        again = worker.complete(prompt)["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] == 0, "its prefixes are gone"
        for path in ("/sleep", "/wake_up", "/is_sleeping", "/reset_prefix_cache"):
            assert worker.post(path, {}).status == 404, "the public address has no such route"
        assert worker.stop() == 0, worker.errors()
    assert not place.exists()


def test_sleep_waits_for_running_requests_or_gives_up(place):
    with Worker("--device", "sim", "--admin-uds", place) as worker:
        admin = AdminSocket(place)
        stream = worker.open_stream(max_tokens=1000)
        status, body = admin.ask("POST", "/sleep?level=0&timeout_s=0.1")
        assert (status, body["error"]["code"]) == (409, "still_running")
        assert worker.get("/ready").status == 200, "it is awake again"
        stream.close()
        assert admin.ask("POST", "/sleep?level=0") == (200, {"is_sleeping": True})
        assert worker.stop() == 0, "a sleeping worker ends as usual"


def test_a_wake_up_ends_a_sleep_that_still_waits(place):
    with Worker("--device", "sim", "--admin-uds", place) as worker:
        admin = AdminSocket(place)
        stream = worker.open_stream(max_tokens=1000)
        with ThreadPoolExecutor(2) as pool:
            sleep = pool.submit(admin.ask, "POST", "/sleep?level=0&timeout_s=3600")
            while not admin.ask("GET", "/is_sleeping")[1]["is_sleeping"]:
                assert not sleep.done()
            second = pool.submit(admin.ask, "POST", "/sleep?level=0&timeout_s=3600")
            assert worker.post("/v1/completions", {"prompt": "x"}).status == 503
            assert admin.ask("POST", "/wake_up") == (200, {"is_sleeping": False})
            status, body = sleep.result()
            assert (status, body["error"]["message"]) == (409, "1 requests still run at a wake-up")
            stream.close()
            # It came before the wake-up or after it.
            assert second.result()[0] in (200, 409)
            assert admin.ask("POST", "/wake_up") == (200, {"is_sleeping": False})
        worker.complete(max_tokens=1)
        assert admin.ask("POST", "/sleep?level=0") == (200, {"is_sleeping": True})
        assert worker.stop() == 0, worker.errors()


def test_a_worker_that_falls_asleep_ends_at_sigterm(place):
    with Worker("--device", "sim", "--shutdown-timeout", "0", "--admin-uds", place) as worker:
        admin = AdminSocket(place)
        stream = worker.open_stream(max_tokens=1000)
        with ThreadPoolExecutor(1) as pool:
            sleep = pool.submit(admin.ask, "POST", "/sleep?level=0&timeout_s=3600")
            while not admin.ask("GET", "/is_sleeping")[1]["is_sleeping"]:
                assert not sleep.done()
            assert worker.stop() == 0, worker.errors()
            with contextlib.suppress(OSError, http.client.HTTPException):
                assert sleep.result()[0] >= 400, "it has not slept"
        stream.close()
        assert "Traceback" not in worker.errors(), worker.errors()


def test_a_sleeping_cpu_worker_gives_its_weights_back_and_reads_them_again(place):
    flags = ("--device", "cpu", "--enable-sleep-mode", "--admin-uds", place)
    with Worker(*flags, model="demo") as worker:
        admin = AdminSocket(place)
        prompt = list(range(5, 105))
        first = worker.complete(prompt, max_tokens=12, temperature=0)["choices"][0]["text"]
        awake = resident_bytes(worker)
        for level in (1, 2):
            assert admin.ask("POST", f"/sleep?level={level}") == (200, {"is_sleeping": True})
            assert resident_bytes(worker) < awake - WEIGHT_BYTES // 4
            assert worker.get("/health").json["status"] == "asleep"
            assert 'vllm:engine_sleep_state{engine="0"' in worker.get("/metrics").body.decode()
            assert worker.post("/v1/completions", {"prompt": "x"}).status == 503
            assert admin.ask("POST", "/wake_up") == (200, {"is_sleeping": False})
            again = worker.complete(prompt, max_tokens=12, temperature=0)
            assert again["choices"][0]["text"] == first
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert resident_bytes(worker) < awake + WEIGHT_BYTES // 2
        assert worker.stop() == 0, worker.errors()


def test_engines_that_share_weights_sleep_and_wake_together(place):
    flags = ("--data-parallel-size", 2, "--cpu-threads", 2, "--enable-sleep-mode")
    with Worker("--device", "cpu", *flags, "--admin-uds", place, model="demo") as worker:
        admin = AdminSocket(place)
        awake = resident_bytes(worker)
        assert admin.ask("POST", "/sleep") == (200, {"is_sleeping": True})
        assert resident_bytes(worker) < awake - WEIGHT_BYTES // 4
        assert admin.ask("POST", "/wake_up") == (200, {"is_sleeping": False})
        for _ in range(3):
            worker.complete()
        assert worker.stop() == 0, worker.errors()


def test_a_worker_without_sleep_mode_pauses_and_refuses_to_give_weights_back(place):
    with Worker("--device", "cpu", "--admin-uds", place) as worker:
        admin = AdminSocket(place)
        status, body = admin.ask("POST", "/sleep")
        assert (status, body["error"]["code"]) == (501, "not_supported")
        assert "--enable-sleep-mode" in body["error"]["message"]
        assert admin.ask("GET", "/is_sleeping") == (200, {"is_sleeping": False})
        assert admin.ask("POST", "/sleep?level=0") == (200, {"is_sleeping": True})
        assert admin.ask("POST", "/wake_up") == (200, {"is_sleeping": False})
        worker.complete()
        assert worker.stop() == 0, worker.errors()


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("level=x", 400, "level: must be a whole number from 0 to 2"),
        ("level=1.5", 400, "level: must be a whole number from 0 to 2"),
        ("timeout_s=-1", 400, "timeout_s: must be a number from 0 to 3600"),
        ("mode=abort", 501, "mode: must be wait, not 'abort'"),
        ("tags=weights", 400, "tags: /sleep the query may have level, timeout_s, mode"),
    ],
)
def test_what_sleep_cannot_do_is_refused_by_name(sim_admin, query, status, said):
    answer, body = sim_admin.ask("POST", f"/sleep?{query}")
    assert (answer, body["error"]["message"]) == (status, said)
    assert sim_admin.ask("GET", "/is_sleeping") == (200, {"is_sleeping": False})


def test_a_worker_that_wakes_in_parts_is_refused_by_name(sim_admin):
    status, body = sim_admin.ask("POST", "/wake_up?tags=weights")
    assert (status, body["error"]["message"]) == (400, "tags: /wake_up takes no query")


def resident_bytes(worker):
    """Memory that the worker holds."""
    pages = int(Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def sim_admin(tmp_path_factory):
    place = tmp_path_factory.mktemp("admin") / "admin.sock"
    with Worker("--device", "sim", "--admin-uds", place) as worker:
        yield AdminSocket(place)
        assert worker.stop() == 0, worker.errors()


WEIGHT_BYTES = 96 << 20
"""Of the demo model."""
