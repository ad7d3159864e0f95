"""Behind an nginx that buffers, as it does by default.

security/nginx.conf turns buffering off; here only our header says so. Needs nginx on the machine.
"""

import json
import time

import pytest

from server import test_nginx
from server.test_nginx import LONG, Proxy, in_system, pytestmark, wait_until_empty  # noqa: F401
from server.worker import Worker, http_request, joined, parse_events, whole

OURS = ["            proxy_buffering off;\n", "            proxy_http_version 1.1;\n"]
"""Lines that a default nginx lacks: it buffers, and speaks HTTP/1.0 to those behind it."""
A_BUFFER = 12
"""Fewer events than 4 KB hold, the least that nginx buffers; 200 ms of this device."""
PACE = ("--device", "sim", "--sim-speed", "0.25")
PING = b"\n:\n\n"


def buffering(worker, folder, **more):
    """A proxy without those lines; `more` is added."""
    text = test_nginx.CONFIG.read_text()
    added = "".join(f"{name} {value};\n" for name, value in more.items())
    for line in OURS:
        assert line in text
        text, added = text.replace(line, added), ""
    config = folder / "buffering.conf"
    config.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_nginx, "CONFIG", config)
        return Proxy(worker, folder)


@pytest.fixture(scope="module", params=["tcp", "unix"])
def proxy(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nginx")
    flags = ("--uds", folder / "ingle.sock") if request.param == "unix" else ()
    with Worker(*PACE, *flags) as worker:
        made = buffering(worker, folder)
        yield made
        worker.wait_until_idle()
        made.stop()
        assert worker.stop() == 0, worker.errors()


def most_at_once(proxy, path, body):
    """The most events that come at once until there are 16; the request runs on."""
    with proxy.connect() as connection:
        connection.sendall(http_request("POST", path, json.dumps(body).encode()))
        counts = []
        while sum(counts) < 16:
            part = connection.recv(65536)
            assert part
            counts.append(part.count(b"data: "))
        assert in_system(proxy) == 1, "events are here while the request runs"
    wait_until_empty(proxy)
    return max(counts)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_streams_pass_nginx_as_they_are_made(proxy, path):
    body = {"max_tokens": 1500, "ignore_eos": True, "stream": True}
    if path == "/v1/responses":
        body = {"input": "x", "max_output_tokens": 1500, "stream": True, "seed": 2}
    elif "chat" in path:
        body["messages"] = [{"role": "user", "content": "x"}]
    else:
        body["prompt"] = "x"
    assert most_at_once(proxy, path, body) < A_BUFFER, "no buffer was filled first"


def test_streams_behind_nginx_are_whole_and_have_their_headers(proxy):
    fields = {"prompt": "x", "max_tokens": 9, "temperature": 0}
    reply = proxy.worker.post("/v1/completions", fields | {"stream": True})
    assert reply.headers["X-Accel-Buffering"] == "no", "nginx takes it out of the answer"
    reply = proxy.post("/v1/completions", fields | {"stream": True})
    assert reply.headers["Cache-Control"] == "no-cache"
    assert joined(parse_events(reply.body)) == whole(
        proxy.worker.post("/v1/completions", fields).json
    )


def test_without_the_header_nginx_does_hold_streams_back(tmp_path):
    """Shows that the tests above can fail: the same proxy, set to ignore the header."""
    with Worker(*PACE) as worker:
        more = {"proxy_ignore_headers": "X-Accel-Buffering"}
        proxy = buffering(worker, tmp_path, **more)
        assert most_at_once(proxy, "/v1/completions", LONG | {"stream": True}) >= A_BUFFER
        proxy.stop()
        assert worker.stop() == 0, worker.errors()


@pytest.mark.long
def test_pings_pass_during_a_long_prefill(tmp_path):
    with Worker("--device", "sim", "--sim-speed", "0.0001") as worker:
        proxy = buffering(worker, tmp_path)
        with proxy.connect() as connection:
            body = json.dumps(LONG | {"stream": True, "max_tokens": 2}).encode()
            began = time.monotonic()
            connection.sendall(http_request("POST", "/v1/completions", body))
            connection.settimeout(20)
            data = b""
            while PING not in data:
                data += connection.recv(65536)
            assert 9 < time.monotonic() - began < 16
            assert b"data: " not in data, "nothing is sent before the first token"
        wait_until_empty(proxy)
        proxy.stop()
