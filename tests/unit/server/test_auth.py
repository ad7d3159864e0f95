import pytest
from aiohttp.test_utils import make_mocked_request

from ingle.errors import ConfigError, RefusedError
from ingle.server.auth import ApiKeys, read_key_file


def request(path="/v1/models", method="GET", **headers):
    return make_mocked_request(method, path, headers=headers)


def test_key_decides_the_tenant():
    keys = ApiKeys({"k1": "alice", "k2": "bob"})
    assert keys.tenant(request(Authorization="Bearer k1")) == "alice"
    assert keys.tenant(request(Authorization="bearer k2")) == "bob"


@pytest.mark.parametrize(
    "value", ["", "k1", "Bearer", "Bearer ", "Bearer k", "Bearer k11", "Basic k1", "Bearer k1 k1"]
)
def test_anything_else_is_401(value):
    keys = ApiKeys({"k1": "alice"})
    with pytest.raises(RefusedError) as caught:
        keys.tenant(request(Authorization=value))
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "path",
    [
        "//health",
        "/health/",
        "/HEALTH",
        "/health?x",
        "/health/../v1/models",
        "/%68ealth",
        "/healthz",
    ],
)
def test_no_other_spelling_is_open(path):
    with pytest.raises(RefusedError):
        ApiKeys({"k": "t"}).tenant(request(path))


def test_open_paths_are_open_for_reading_only():
    keys = ApiKeys({"k": "t"})
    assert keys.tenant(request("/health")) == ""
    assert keys.tenant(request("/ready", "HEAD")) == ""
    with pytest.raises(RefusedError):
        keys.tenant(request("/health", "POST"))
    with pytest.raises(RefusedError):
        keys.tenant(request("/health", "OPTIONS"))


def test_open_paths_with_a_key_know_the_tenant():
    assert ApiKeys({"k": "t"}).tenant(request("/health", Authorization="Bearer k")) == "t"


def test_without_keys_everything_is_open():
    assert ApiKeys({}).tenant(request("/metrics")) == ""


def test_key_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# people\n\nalice: a:b:c \nbob:k2\n")
    keys = read_key_file(file)
    assert keys.tenant(request(Authorization="Bearer a:b:c")) == "alice"
    assert keys.tenant(request(Authorization="Bearer k2")) == "bob"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("secret-without-tenant", "line 1: must be tenant:key"),
        ("a:1\n:secret", "line 2: must be tenant:key"),
        ("a:secret\nb:secret", "line 2: the key is there twice"),
        ("# nothing\n", "no keys"),
    ],
)
def test_bad_key_file_names_the_line_and_no_key(tmp_path, text, message):
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_key_file(file)
    assert "secret" not in str(caught.value)


def test_missing_key_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="api_key_file: cannot read"):
        read_key_file(tmp_path / "none")
