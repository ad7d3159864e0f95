import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from ingle.errors import ConfigError, RefusedError
from ingle.server.auth import ApiKeys, read_key_file


def request(path="/v1/models", method="GET", **headers):
    return make_mocked_request(method, path, headers=headers)


def test_key_decides_the_tenant():
    keys = ApiKeys({"k1": "alice", "k2": "bob"})
    assert keys.identity(request(Authorization="Bearer k1")).tenant == "alice"
    assert keys.identity(request(Authorization="bearer k2")).tenant == "bob"


@pytest.mark.parametrize(
    "value", ["", "k1", "Bearer", "Bearer ", "Bearer k", "Bearer k11", "Basic k1", "Bearer k1 k1"]
)
def test_anything_else_is_401(value):
    keys = ApiKeys({"k1": "alice"})
    with pytest.raises(RefusedError) as caught:
        keys.identity(request(Authorization=value))
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
        ApiKeys({"k": "t"}).identity(request(path))


def test_open_paths_are_open_for_reading_only():
    keys = ApiKeys({"k": "t"})
    assert keys.identity(request("/health")) == ("", False, False)
    assert keys.identity(request("/ready", "HEAD")) == ("", False, False)
    with pytest.raises(RefusedError):
        keys.identity(request("/health", "POST"))
    with pytest.raises(RefusedError):
        keys.identity(request("/health", "OPTIONS"))


def test_open_paths_with_a_key_know_the_tenant():
    assert ApiKeys({"k": "t"}).identity(request("/health", Authorization="Bearer k")).tenant == "t"


def test_without_keys_everything_is_open():
    assert ApiKeys({}).identity(request("/metrics")) == ("", True, True)


def test_a_key_file_gives_tenants_and_admins(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# people\n\nalice: a:b:c \nbob:k2\nops:k3 admin\n")
    file.chmod(0o600)
    keys = read_key_file(file)
    assert str(keys) == "with 3 API keys, 1 for admins"
    assert keys.identity(request(Authorization="Bearer a:b:c")).tenant == "alice"
    assert keys.identity(request(Authorization="Bearer k2")).tenant == "bob"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("secret-without-tenant", "line 1: must be tenant:key"),
        ("a:1\n:secret", "line 2: must be tenant:key"),
        ("a:secret\nb:secret", "line 2: duplicate key"),
        ("# nothing\n", "no keys"),
        ("a:secret root", "line 1: only the word `admin` may follow the key"),
        ("a:secret admin admin", "line 1: only the word"),
        ("a:sec\0ret", "line 1: the key has a character that no header can have"),
    ],
)
def test_bad_key_file_names_the_line_and_no_key(tmp_path, text, message):
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=message) as caught:
        read_key_file(file)
    assert "secret" not in str(caught.value)


def test_a_key_file_without_an_end_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="/dev/zero: it is neither a file nor a pipe"):
        read_key_file(Path("/dev/zero"))
    monkeypatch.setattr("ingle.server.auth.MOST_BYTES", 100_000)
    read_fd, write_fd = os.pipe()
    writer = threading.Thread(target=write_until_closed, args=(write_fd,))
    writer.start()
    with pytest.raises(ConfigError, match="it is longer than 100000 bytes"):
        read_key_file(Path(f"/proc/self/fd/{read_fd}"))
    os.close(read_fd)
    writer.join()


def write_until_closed(fd):
    with contextlib.suppress(BrokenPipeError):
        while True:
            os.write(fd, b"a:key\n" * 1000)


def test_a_byte_order_mark_is_not_part_of_a_tenants_name(tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbfalice:k\r\n")
    file.chmod(0o600)
    assert read_key_file(file).identity(request(Authorization="Bearer k")).tenant == "alice"


def test_missing_key_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="api_key_file: cannot read"):
        read_key_file(tmp_path / "none")


def test_admins_are_marked_in_the_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("alice:k1\nops:k2   admin \n")
    file.chmod(0o640)
    keys = read_key_file(file)
    assert keys.identity(request(Authorization="Bearer k1")) == ("alice", True, False)
    assert keys.identity(request(Authorization="Bearer k2")) == ("ops", True, True)
    with pytest.raises(RefusedError):
        keys.identity(request(Authorization="Bearer k2 admin"))


@pytest.mark.parametrize("header", ["X-Api-Key", "x-api-key"])
def test_the_key_header_of_anthropic_s_clients(header):
    keys = ApiKeys({"k1": "alice", "k2": "bob"})
    assert keys.identity(request(**{header: " k1 "})).tenant == "alice"
    both = request(**{header: "k1", "Authorization": "Bearer k2"})
    assert keys.identity(both).tenant == "bob"
    assert keys.identity(request(**{header: "k1", "Authorization": "Bearer x"})).tenant == "alice"
    with pytest.raises(RefusedError):
        keys.identity(request(**{header: "k"}))


@pytest.mark.parametrize(
    ("mode", "what"), [(0o644, "read"), (0o622, "write"), (0o620, "write"), (0o602, "write")]
)
def test_a_key_file_that_others_can_use_is_refused(tmp_path, mode, what):
    file = tmp_path / "keys"
    file.write_text("alice:secret\n")
    file.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        read_key_file(file)
    assert str(caught.value).startswith(f"api_key_file: others can {what} {file}")
    assert f"{mode:o}" in str(caught.value)


def test_a_key_file_of_another_user_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("alice:secret\n")
    file.chmod(0o600)
    owner = file.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner == 0:
        assert "1 API key" in str(read_key_file(file))  # Root may change it whatever we say.
        return
    with pytest.raises(ConfigError, match=f"belongs to user {owner}"):
        read_key_file(file)


def test_keys_come_from_a_pipe_too(tmp_path):
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"alice:k1\n")
    os.close(write_fd)
    keys = read_key_file(Path(f"/proc/self/fd/{read_fd}"))
    assert keys.identity(request(Authorization="Bearer k1")).tenant == "alice"


def test_no_key_stays_in_memory_as_it_is(tmp_path):
    file = tmp_path / "keys"
    file.write_text("alice:a-long-secret\n")
    file.chmod(0o600)
    keys = read_key_file(file)
    assert "a-long-secret" not in str(vars(keys))


def test_many_keys_cost_no_more_than_few():
    keys = ApiKeys({f"key-{i}": f"tenant-{i}" for i in range(5_000)})
    asked = request(Authorization="Bearer key-4999")
    before = time.process_time()
    for _ in range(1000):
        assert keys.identity(asked).tenant == "tenant-4999"
    # Compared with each of 5,000 digests a request would take milliseconds.
    assert time.process_time() - before < 0.5


def test_the_start_says_how_many_keys_there_are_and_that_metrics_are_closed():
    assert str(ApiKeys({})) == "without API keys"
    assert str(ApiKeys({"a": "t"})) == "with 1 API key, none for admins: /metrics is closed"
    assert str(ApiKeys({"a": "t", "b": "u"}, {"b"})) == "with 2 API keys, 1 for admins"
