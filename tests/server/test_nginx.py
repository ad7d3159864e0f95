"""Behind nginx, as security/nginx.conf sets it up: over TCP and over a Unix socket.

Needs nginx on the machine (Debian: nginx-light); without it these tests are skipped, loudly.
"""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from server.worker import Reply, Worker, http_request, joined, proxied, wait_for, whole

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
CONFIG = Path(__file__).parents[2] / "security" / "nginx.conf"
LONG = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}

pytestmark = pytest.mark.skipif(NGINX is None, reason="NGINX IS NOT INSTALLED: apt install nginx")


class Proxy:
    """A running nginx in front of a worker; requests go through it."""

    def __init__(self, worker, folder):
        self.worker = worker
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = probe.getsockname()
        upstream = f"unix:{worker.uds}" if worker.uds else "{}:{}".format(*worker.address)
        text = CONFIG.read_text()
        for old, new in [
            ("server 127.0.0.1:8000;", f"server {upstream};"),
            ("listen 8080 ", "listen {}:{} ".format(*self.address)),
            ("worker_processes auto;", "daemon off;\nworker_processes 1;"),
            ("/run/nginx.pid", f"{folder}/nginx.pid"),
            ("/var/log/nginx/error.log", "stderr"),
            ("/var/log/nginx/access.log combined", "off"),
            ("http {\n", "http {\n" + "".join(
                f"    {kind}_temp_path {folder}/{kind};\n"
                for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))),
        ]:  # fmt: skip
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        # nginx changes to another user if it starts as root; the test's folder is ours alone.
        assert text.count("user www-data;") == 1
        text = text.replace("user www-data;", "user root;" if os.getuid() == 0 else "")
        path = Path(folder) / "nginx.conf"
        path.write_text(text)
        command = [NGINX, "-c", str(path), "-p", str(folder), "-e", "stderr"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_for(self._answers, 10, lambda: f"nginx does not start: {self.process.poll()}")

    def _answers(self):
        with contextlib.suppress(OSError), self.connect() as connection:
            connection.sendall(http_request("GET", "/ready", Connection="close"))
            return b"200" in connection.recv(100)
        return False

    def connect(self):
        return socket.create_connection(self.address, timeout=30)

    def connections(self):
        """How many connections the worker has from anywhere."""
        count = 0
        for fd in os.scandir(f"/proc/{self.worker.process.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                count += os.readlink(fd.path).startswith("socket:")
        return count

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)

    # The worker's helpers, through the proxy.
    uds = None
    request, get, post = Worker.request, Worker.get, Worker.post
    complete, chat, open_stream, raw = (
        Worker.complete, Worker.chat, Worker.open_stream, Worker.raw,
    )  # fmt: skip


@pytest.fixture(scope="module")
def many_files():
    """Often 1,024 files are the limit until a program asks for more; nginx inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module", params=["tcp", "unix"])
def proxy(request, many_files, tmp_path_factory):
    with proxied(Proxy, request.param, tmp_path_factory.mktemp("nginx")) as made:
        yield made


def in_system(proxy):
    return proxy.worker.health()["in_system"]


def wait_until_empty(proxy):
    wait_for(lambda: in_system(proxy) == 0, 3, lambda: str(proxy.worker.health()))


def test_answers_are_the_same_through_the_proxy(proxy):
    fields = {"max_tokens": 30, "n": 2, "seed": 3}
    direct = whole(proxy.worker.complete(**fields))
    assert whole(proxy.complete(**fields)) == direct
    assert joined(proxy.complete(**fields, stream=True)) == direct
    reply = proxy.post("/v1/completions", {"prompt": "x", "n": 0})
    assert (reply.status, reply.error["param"]) == (400, "n")
    assert proxy.get("/v1/models").json == proxy.worker.get("/v1/models").json


def test_streams_are_not_held_back(proxy):
    connection = proxy.open_stream(**LONG)
    assert in_system(proxy) == 1, "the first event is here while the request runs"
    received = b""
    while received.count(b"data: ") < 20:
        received += connection.recv(65536)
    assert in_system(proxy) == 1
    connection.close()
    wait_until_empty(proxy)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(proxy, stream):
    connection = proxy.connect()
    body = b'{"prompt":"x","max_tokens":1900,"ignore_eos":true,"stream":%s}'
    body %= b"true" if stream else b"false"
    connection.sendall(http_request("POST", "/v1/completions", body))
    wait_for(lambda: in_system(proxy) == 1, 5, lambda: str(proxy.worker.health()))
    connection.close()
    wait_until_empty(proxy)


def test_a_half_closed_client_has_left(proxy):
    with proxy.open_stream(**LONG) as connection:
        connection.shutdown(socket.SHUT_WR)
        wait_until_empty(proxy)


def test_connections_to_the_worker_are_kept_and_reused(proxy):
    proxy.complete(max_tokens=1)
    before = proxy.connections()
    for i in range(60):
        match i % 4:
            case 0:
                proxy.complete(max_tokens=2)
            case 1:
                proxy.complete(max_tokens=2, stream=True)
            case 2:
                assert proxy.post("/v1/completions", {"prompt": "x", "n": -1}).status == 400
            case _:
                assert proxy.get("/v1/nothing").status == 404
    assert proxy.connections() <= before + 1


def test_5000_slow_headers_and_bodies_never_reach_the_worker(proxy):
    """Half of a head or of a body from each client; others are served meanwhile."""
    proxy.complete(max_tokens=1)
    before = proxy.connections()
    request = http_request("POST", "/v1/completions", b'{"prompt":"x","max_tokens":1}')
    with contextlib.ExitStack() as stack:
        for i in range(5000):
            connection = stack.enter_context(proxy.connect())
            connection.sendall(request[: len(request) - 5 if i % 10 == 0 else 20 + i % 40])
        for _ in range(5):
            began = time.monotonic()
            proxy.complete(max_tokens=1)
            assert time.monotonic() - began < 2
        assert proxy.connections() <= before + 1
        assert in_system(proxy) == 0


def test_a_client_that_sends_byte_by_byte_is_served(proxy):
    request = http_request(
        "POST", "/v1/completions", b'{"prompt":"x","max_tokens":2}', Connection="close"
    )
    with proxy.connect() as connection:
        for i in range(len(request)):
            connection.sendall(request[i : i + 1])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_body_beyond_the_limit_stops_at_the_proxy(proxy):
    before = proxy.worker.metric("vllm:request_success_total")
    data = proxy.raw(http_request("POST", "/v1/completions", Content_Length="9000000"))
    assert data.startswith(b"HTTP/1.1 413")
    assert proxy.worker.metric("vllm:request_success_total") == before


def test_a_request_id_passes_through_the_proxy(proxy):
    assert proxy.get("/version", headers={"X-Request-Id": "a-1"}).headers["X-Request-Id"] == "a-1"
    made = {proxy.get("/version").headers["X-Request-Id"] for _ in range(3)}
    assert len(made) == 3


def test_a_draining_worker_says_so_through_the_proxy(tmp_path):
    with Worker("--device", "sim") as worker:
        proxy = Proxy(worker, tmp_path)
        stream = proxy.open_stream(**LONG | {"max_tokens": 300})
        kept = [proxy.get("/ready").status for _ in range(3)]
        assert kept == [200] * 3
        worker.process.send_signal(signal.SIGTERM)
        wait_for(lambda: proxy.get("/ready").status == 503, 5, lambda: "still ready")
        reply = proxy.post("/v1/completions", {"prompt": "x"})
        assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
        assert isinstance(reply, Reply)
        assert reply.error["code"] == "service_unavailable"
        data = b""
        while part := stream.recv(65536):
            data += part
            if data.endswith(b"0\r\n\r\n"):
                break
        assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        stream.close()
        assert worker.wait() == 0
        proxy.stop()
