"""Stores and hubs that lie, drip and point elsewhere, and secrets that no header can have."""

import contextlib
import fcntl
import logging
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from ingle.errors import ConfigError, ModelError
from ingle.remote import files, hub, s3, transport
from remote.fetching import CONTENT, MODEL, from_hub, from_s3, gets, read
from remote.store import Store, send

SECRET = "hf_a-secret"


def fetch(name, cache, environment):
    """A fetch by what reads this variable."""
    if name.startswith("HF_"):
        return hub.fetch_from_hub(hub.HubModel("org/tiny"), cache, environment)
    return s3.fetch_from_s3(MODEL, cache, environment)


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"])
def test_a_secret_that_no_header_can_have_is_refused_and_not_shown(repository, tmp_path, name):
    for bad in (f"{SECRET}\nX: y", f"{SECRET}é", f"{SECRET} two"):
        environment = {"HF_ENDPOINT": repository.url, "AWS_ENDPOINT_URL": repository.url}
        environment |= {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "s", name: bad}
        with pytest.raises(ConfigError) as caught:
            fetch(name, tmp_path, environment)
        assert str(caught.value).startswith(f"{name}: must be printable ASCII")
        assert SECRET not in str(caught.value)
    assert repository.asked == []


def test_the_line_end_of_a_token_from_a_file_is_dropped(repository, tmp_path):
    environment = {"HF_ENDPOINT": repository.url, "HF_TOKEN": f"{SECRET}\n"}
    hub.fetch_from_hub(hub.HubModel("org/tiny"), tmp_path, environment)
    assert repository.asked[0][2]["Authorization"] == f"Bearer {SECRET}"


def test_a_server_with_a_wrong_token_ends_with_a_line_that_does_not_show_it(repository):
    environment = {**os.environ, "HF_ENDPOINT": repository.url, "HF_TOKEN": f"{SECRET}\nX: y"}
    command = [sys.executable, "-m", "ingle", "serve", "hf://org/tiny", "--port", "0"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "HF_TOKEN: must be printable ASCII" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert SECRET not in ended.stderr + ended.stdout


@pytest.mark.parametrize("name", ["HF_ENDPOINT", "AWS_ENDPOINT_URL"])
@pytest.mark.parametrize(
    "address",
    ["file:///etc", "hub.local", "https://", "https://me:a-secret@hub", "http://[", "http://h:x",
     "http://h/?a=b", "http://h/\x7f"],
)  # fmt: skip
def test_a_store_s_address_is_checked_and_its_password_not_shown(tmp_path, name, address):
    with pytest.raises(ConfigError, match=f"{name}: must be an http or https address") as caught:
        fetch(name, tmp_path, {name: address})
    assert "a-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("file:///etc/passwd", "leads to file://, which is refused"),
        ("ftp://elsewhere/x", "leads to ftp://, which is refused"),
        ("http://[", "leads to what is no address"),
        ("http://:80/x", "leads to what is no address"),
        ("http://host:port/x", "leads to what is no address"),
        ("http://me:a-secret@host/x", "leads to what is no address"),
    ],
)
def test_redirects_to_what_is_no_web_address_are_refused(bucket, tmp_path, location, message):
    def away(handler, body, first):
        send(handler, 302, b"", {"Location": location})
        return True

    bucket.faults = [away] * 20
    with pytest.raises(ModelError, match=message):
        from_s3(bucket, tmp_path)


def test_a_redirect_never_leaves_tls():
    with pytest.raises(ModelError, match="leads to http://, which is refused"):
        transport.followed("https://hub/a", "https://cdn/b", "http://hub/c")
    assert transport.followed("https://hub/a", "https://cdn/b", "//x/c") == "https://x/c"


def test_a_redirect_with_letters_outside_ascii_and_spaces_is_followed(bucket, tmp_path):
    bucket.objects["models/tiny/é 1"] = CONTENT["config.json"]

    def away(handler, body, first):
        if not handler.path.endswith("/config.json"):
            return False
        handler.send_response(302)
        handler.send_header("Location", "/bucket/models/tiny/é 1".encode().decode("latin-1"))
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    bucket.faults = [away]
    assert read(from_s3(bucket, tmp_path)) == CONTENT


def test_what_a_signed_address_contains_is_not_shown(bucket, tmp_path):
    def away(handler, body, first):
        send(handler, 302, b"", {"Location": f"/bucket/gone?X-Amz-Signature={SECRET}"})
        return True

    def changed(handler):
        send(handler, 412, b"")

    answer = bucket.answer
    bucket.answer = lambda handler: changed(handler) if SECRET in handler.path else answer(handler)
    bucket.faults = [away] * 20
    with pytest.raises(ModelError, match="gone: has changed while it was fetched") as caught:
        from_s3(bucket, tmp_path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    [
        "<Key>models/tiny/a.json</Key><ETag>x</ETag><Size>-1</Size>",
        "<Key>models/tiny/a.json</Key><ETag>x</ETag><Size>many</Size>",
        "<Key>models/tiny/a.json</Key><ETag>x</ETag><Size>" + "9" * 5000 + "</Size>",
        "<Key>models/tiny/a.json</Key><ETag>x&#13;&#10;Y: z</ETag><Size>1</Size>",
        "<Key>models/tiny/a.json</Key><ETag>é</ETag><Size>1</Size>",
        "<Key>models/tiny/a.json</Key><Size>1</Size>",
    ],
)
def test_entries_of_a_listing_that_make_no_sense_are_refused(bucket, tmp_path, entry):
    page = f"<ListBucketResult><Contents>{entry}</Contents></ListBucketResult>"
    bucket.listing = lambda query: page
    with pytest.raises(ModelError, match=r"a listing.* has an entry with") as caught:
        from_s3(bucket, tmp_path)
    assert len(str(caught.value)) < 400


def test_a_listing_that_is_cut_off_is_not_taken_for_a_shorter_one(bucket, tmp_path):
    page = bucket.listing({"prefix": ["models/tiny/"]})
    cut_off = page[: page.rindex("<Contents>")]
    without_rest = page.replace("</List", "<IsTruncated>true</IsTruncated></List")
    for text, message in ((cut_off, "no whole listing"), (without_rest, "the address of its rest")):
        bucket.listing = lambda query, text=text: text
        with pytest.raises(ModelError, match=message):
            from_s3(bucket, tmp_path)


def test_a_page_of_unclosed_entries_takes_no_quadratic_time(bucket, tmp_path):
    bucket.listing = lambda query: (
        "<ListBucketResult>" + "<Contents>" * 1_000_000 + "</ListBucketResult>"
    )
    began = time.process_time()
    with pytest.raises(ModelError, match="an entry without Key"):
        from_s3(bucket, tmp_path)
    assert time.process_time() - began < 20


def test_a_bucket_of_too_many_files_is_refused_and_others_are_not_kept(bucket, tmp_path):
    def page(names):
        entries = "".join(
            f"<Contents><Key>models/tiny/{n}</Key><ETag>x</ETag><Size>1</Size></Contents>"
            for n in names
        )
        return f"<ListBucketResult>{entries}</ListBucketResult>"

    bucket.listing = lambda query: page(f"{n}.json" for n in range(s3.MOST_FILES + 1))
    with pytest.raises(ModelError, match="more than 10000 files"):
        from_s3(bucket, tmp_path)
    bucket.listing = lambda query: page(f"x/{n}.json" for n in range(s3.MOST_FILES + 1))
    with pytest.raises(ModelError, match=r"has neither \.safetensors nor \.gguf files"):
        from_s3(bucket, tmp_path)


@pytest.mark.parametrize("size", [-1, 1e999, "9" * 5000, 1 << 50])
def test_sizes_of_a_hub_s_listing_that_make_no_sense_are_refused(repository, tmp_path, size):
    card = repository.card()
    card["siblings"][0]["size"] = card["siblings"][0].setdefault("lfs", {})["size"] = size
    card["siblings"][0]["lfs"].setdefault("sha256", "0" * 64)
    repository.card = lambda: card
    with pytest.raises(ModelError, match=r"is no listing of a model|bytes are more than") as caught:
        from_hub(repository, tmp_path)
    assert len(str(caught.value)) < 600


def test_long_names_and_commits_fill_no_log(repository, tmp_path):
    assert not files.wanted("a" * 201 + ".gguf")
    repository.card = lambda: {"sha": "x" * 100_000, "siblings": []}
    with pytest.raises(ModelError) as caught:
        from_hub(repository, tmp_path)
    assert len(str(caught.value)) < 400


def test_control_characters_of_a_store_reach_no_terminal(bucket, tmp_path):
    def coloured(handler, body, first):
        handler.send_response(404, "\x1b[31m" + "x" * 5000)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    bucket.faults = [coloured] * 20
    with pytest.raises(ModelError, match="HTTP 404") as caught:
        from_s3(bucket, tmp_path)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "address",
    ["org/../x", "org/a..b", "org/tiny@x/../../../../../tmp/y", "org/tiny@a//b", "org/tiny@a/",
     "org/a--b", "../x"],
)  # fmt: skip
def test_hub_addresses_that_lead_out_of_the_cache_are_refused(address):
    with pytest.raises(ConfigError, match="model: must be hf://ORG/NAME"):
        hub.hub_model(f"hf://{address}", False)
    assert hub.hub_model("hf://org/tiny@refs/pr/1", False).revision == "refs/pr/1"


def test_bodies_that_drip_end_the_fetch(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "SLOW_S", 0.02)
    stop = threading.Event()

    def drip(handler, body, first):
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        handler.send_header("Content-Length", str(len(body) - first))
        handler.end_headers()
        with contextlib.suppress(OSError):
            for place in range(first, len(body)):
                handler.wfile.write(body[place : place + 1])
                stop.wait(0.005)
        handler.close_connection = True
        return True

    bucket.objects = {"models/tiny/model.safetensors": CONTENT["model.safetensors"][:50_000]}
    bucket.faults = [drip] * 20
    with pytest.raises(ModelError, match=r"\d+ bytes came in 0 s \(6 times\)"):
        from_s3(bucket, tmp_path)
    stop.set()


def test_heads_that_never_end_end_the_fetch(tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "HEAD_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def go_on():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client, contextlib.suppress(OSError):
                        client.recv(65536)
                        while True:
                            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

        # Not joined: it may wait for a connection that the client gave up.
        threading.Thread(target=go_on, daemon=True).start()
        with pytest.raises(ModelError, match=r"the head of the answer took longer .* \(6 times\)"):
            s3.fetch_from_s3(MODEL, tmp_path, {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"})


def test_a_note_of_parts_without_their_file_is_not_believed(bucket, tmp_path):
    bucket.multipart = True  # So there is no hash to find holes by.
    name = "model.safetensors"

    def die(handler, body, first):
        if not handler.path.endswith(name) or first < 200_000:
            return False
        send(handler, 403, b"")
        return True

    bucket.faults = [die] * 20
    with pytest.raises(ModelError, match="403"):
        from_s3(bucket, tmp_path)
    [partial] = tmp_path.rglob("*.partial")
    partial.unlink()
    with bucket.lock:  # Which the last answer may still hold.
        bucket.faults = []
    assert read(from_s3(bucket, tmp_path))[name] == CONTENT[name]


def test_a_file_of_the_hub_s_cache_that_is_cut_off_comes_again(repository, tmp_path):
    folder = from_hub(repository, tmp_path)
    (folder / "model.safetensors").resolve().write_bytes(b"half")
    repository.asked.clear()
    assert read(from_hub(repository, tmp_path)) == CONTENT
    assert {path.rpartition("/")[2] for path, _, _ in gets(repository)} == {"model.safetensors"}


def test_empty_files_are_files(bucket, tmp_path):
    bucket.objects["models/tiny/added_tokens.json"] = b""
    assert read(from_s3(bucket, tmp_path))["added_tokens.json"] == b""


@pytest.mark.parametrize("source", ["hub", "s3"])
def test_a_second_process_waits_for_the_first_ones_fetch(tmp_path, caplog, source):
    """The test holds the lock as another process would."""
    caplog.set_level(logging.INFO, "ingle")
    store = Store()
    prefix = "" if source == "hub" else "models/tiny/"
    store.objects = {prefix + name: body for name, body in CONTENT.items()}
    with store.serve() as store.url:
        bring = from_hub if source == "hub" else from_s3
        folder = bring(store, tmp_path)
        [place] = tmp_path.rglob(".ingle-lock")
        (folder / "config.json").resolve().unlink()
        store.asked.clear()
        with place.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = []
            thread = threading.Thread(target=lambda: found.append(read(bring(store, tmp_path))))
            thread.start()
            while "another process fetches into" not in caplog.text:
                assert thread.is_alive()
                time.sleep(0.001)
            assert gets(store) == []
        thread.join()
    assert found == [CONTENT]


def test_a_link_where_a_part_would_lie_is_not_followed(bucket, tmp_path):
    from_s3(bucket, tmp_path)
    [file] = tmp_path.rglob("config.json")
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    file.unlink()
    file.with_name(".config.json.partial").symlink_to(other)
    with pytest.raises(ModelError, match="cannot write to"):
        from_s3(bucket, tmp_path)
    assert other.read_bytes() == b"mine"
