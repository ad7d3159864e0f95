"""A worker sleeps and wakes by its admin socket, and nothing else reaches that socket."""

import contextlib
import http.client
import json
import socket
import stat

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


def test_a_device_that_keeps_its_weights_refuses_by_name(place):
    with Worker("--device", "cpu", "--admin-uds", place) as worker:
        admin = AdminSocket(place)
        status, body = admin.ask("POST", "/sleep")
        assert status == 501
        assert "device cpu" in body["error"]["message"]
        assert admin.ask("GET", "/is_sleeping") == (200, {"is_sleeping": False})
        assert admin.ask("POST", "/sleep?level=x")[0] == 400
        assert admin.ask("POST", "/sleep?level=0")[0] == 200
        assert admin.ask("POST", "/wake_up")[0] == 200
        worker.complete()
        assert worker.stop() == 0, worker.errors()
