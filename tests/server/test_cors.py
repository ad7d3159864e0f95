"""--allowed-origins: what browsers read before a page of another origin may use the server."""

import json

import pytest

from ingle.config import Settings
from ingle.errors import ConfigError
from ingle.origins import parse_origins
from server.worker import Worker, http_request

PAGE, OTHER = "https://chat.example", "https://evil.example"
ALLOW = "Access-Control-Allow-Origin"
BODY = {"prompt": "x", "max_tokens": 2}
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """Two origins, and a key that preflights do not have."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("alice:key-a\n")
    file.chmod(0o600)
    origins = f"{PAGE}, HTTP://LocalHost:3000"
    options = ("--device", "sim", "--sim-speed", "inf", "--api-key-file", file)
    with Worker(*options, "--allowed-origins", origins) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


def with_key(origin):
    return {"Authorization": "Bearer key-a", "Origin": origin}


def test_a_preflight_is_answered_before_the_key_is_asked_for(exact):
    for path in ("/v1/chat/completions", "/v1/models", "/nowhere"):
        reply = exact.request("OPTIONS", path, headers=PREFLIGHT | {"Origin": PAGE})
        assert (reply.status, reply.body) == (204, b"")
        assert reply.headers[ALLOW] == PAGE
        assert reply.headers["Vary"] == "Origin"
        assert "POST" in reply.headers["Access-Control-Allow-Methods"].split(", ")
        asked = PREFLIGHT["Access-Control-Request-Headers"]
        assert reply.headers["Access-Control-Allow-Headers"] == asked
        assert int(reply.headers["Access-Control-Max-Age"]) > 0
        assert "Access-Control-Allow-Credentials" not in reply.headers


@pytest.mark.parametrize("wanted", ["", "a\tb: c", "x" * 3000, "naïve"])
def test_headers_that_are_none_are_not_repeated_in_a_preflight(exact, wanted):
    headers = PREFLIGHT | {"Origin": PAGE, "Access-Control-Request-Headers": wanted}
    reply = exact.request("OPTIONS", "/v1/models", headers=headers)
    assert "Authorization" in reply.headers["Access-Control-Allow-Headers"].split(", ")


@pytest.mark.parametrize(
    "origin",
    [OTHER, "null", f"{PAGE}:8443", f"{PAGE}.evil.example", "http://chat.example", PAGE.upper()],
)
def test_another_origin_gets_no_permission(exact, origin):
    for method, extra in (("OPTIONS", PREFLIGHT), ("GET", {})):
        headers = with_key(origin) | extra
        reply = exact.request(method, "/v1/models", headers=headers)
        assert ALLOW not in reply.headers
        assert reply.headers["Vary"] == "Origin", "a cache must not serve this to the right origin"


def test_every_answer_names_the_origin_errors_and_streams_too(exact):
    path = "/v1/completions"
    answers = {
        200: exact.post(path, BODY, headers=with_key(PAGE)),
        400: exact.post(path, BODY | {"n": 0}, headers=with_key(PAGE)),
        401: exact.post(path, BODY, headers={"Origin": PAGE}),
        404: exact.get("/nowhere", headers=with_key("http://localhost:3000")),
        405: exact.get(path, headers=with_key(PAGE)),
        413: exact.post(path, b"x" * (9 << 20), headers=with_key(PAGE)),
        415: exact.post(path, b"x", headers=with_key(PAGE) | {"Content-Type": "text/plain"}),
    }
    for status, reply in answers.items():
        assert reply.status == status
        assert reply.headers[ALLOW] in (PAGE, "http://localhost:3000")
        assert "X-Request-Id" in reply.headers["Access-Control-Expose-Headers"]
        assert reply.headers["Vary"] == "Origin"
    streamed = exact.post(path, BODY | {"stream": True}, headers=with_key(PAGE))
    assert streamed.events
    assert (streamed.headers[ALLOW], streamed.headers["Vary"]) == (PAGE, "Origin")


def test_a_star_allows_every_origin_without_naming_it():
    with Worker("--device", "sim", "--sim-speed", "inf", "--allowed-origins", "*") as worker:
        for headers in ({"Origin": OTHER}, {"Origin": "null"}, {}):
            reply = worker.get("/v1/models", headers=headers)
            assert reply.headers[ALLOW] == "*"
            assert "Vary" not in reply.headers
        streamed = worker.post("/v1/completions", BODY | {"stream": True})
        assert streamed.headers[ALLOW] == "*"
        reply = worker.request("OPTIONS", "/v1/models", headers=PREFLIGHT | {"Origin": OTHER})
        assert (reply.status, reply.headers[ALLOW]) == (204, "*")


def test_without_the_flag_nothing_is_said_of_origins(sim):
    for reply in (
        sim.get("/v1/models", headers={"Origin": PAGE}),
        sim.post("/v1/completions", BODY | {"stream": True}, headers={"Origin": PAGE}),
    ):
        assert reply.status == 200
        assert not [name for name in reply.headers if name.lower().startswith("access-control")]
        assert "Vary" not in reply.headers
    reply = sim.request("OPTIONS", "/v1/models", headers=PREFLIGHT | {"Origin": PAGE})
    assert (reply.status, ALLOW in reply.headers) == (405, False)
    raw = sim.raw(http_request("OPTIONS", "/v1/models", Connection="close"))
    assert raw.startswith(b"HTTP/1.1 405")


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("https://a.example", ("https://a.example",)),
        ("https://a.example:443, http://[::1]:80", ("https://a.example", "http://[::1]")),
        ("HTTPS://A.Example:8443", ("https://a.example:8443",)),
        ('["https://a.example", "app://x"]', ("https://a.example", "app://x")),
        ('["*"]', ("*",)),
        ("*", ("*",)),
        ("", ()),
        ("http://[0:0:0:0:0:0:0:1]:3000", ("http://[::1]:3000",)),
        ("http://127.0.0.1:65535, http://a_b.:1", ("http://127.0.0.1:65535", "http://a_b.:1")),
        ("chrome-extension://abcdef", ("chrome-extension://abcdef",)),
    ],
)
def test_forms_of_the_flag(text, origins):
    assert parse_origins(text) == origins


@pytest.mark.parametrize(
    "text",
    [
        *("https://a.example/", "a.example", "*, https://a.example", "null", "https://a b"),
        *("https://*.a.example", "https://a.example:99999999", "[1]", "[", '{"a": 1}'),
        *("http://a:99999", "http://a:65536", "http://a:0", "http://a:", "http://a:1/"),
        *("http://a/path", "http://a?x", "http://a#x", "http://u@a", "http://", "//a"),
        *("http://a*.example", "http://a.*:80", "http://*", "http://a..b", "http://.a"),
        *("http://::1", "http://[::1", "http://[]", "http://[1::2::3]", "http://[12345::]"),
        *("http://[fe80::1%25eth0]", "http://1.2.3", "http://1.2.3.256", "http://0x7f.1"),
        *("http://" + "a" * 64, "http://" + "a." * 127 + "a", "http://b\u00fccher.example"),
    ],
)
def test_what_is_no_origin_is_named(text):
    with pytest.raises(ConfigError, match=r"^allowed_origins: ") as caught:
        Settings(model="x", allowed_origins=text)
    if "://" in text:
        assert repr(text[:200]) in str(caught.value) or "`*`" in str(caught.value)


def test_the_settings_file_has_a_list(tmp_path):
    file = tmp_path / "ingle.toml"
    file.write_text(f"allowed-origins = {json.dumps([PAGE])}\n")
    command = ("--device", "sim", "--sim-speed", "inf", "--config", file)
    with Worker(*command) as worker:
        assert worker.get("/version", headers={"Origin": PAGE}).headers[ALLOW] == PAGE
