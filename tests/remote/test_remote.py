"""Models from an S3 bucket and from a hub: what arrives is what was promised, whatever breaks."""

import datetime
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ingle
from ingle.config import Settings
from ingle.errors import ConfigError, ModelError
from ingle.remote import fetched, files, hub, s3
from remote.fetching import CONTENT, MODEL, from_hub, from_s3, gets, read
from remote.store import COMMIT, Store, cut, send, silent, status
from server.test_several_models import Several
from server.worker import TINY, Worker


def test_a_bucket_becomes_a_folder_once(bucket, tmp_path):
    folder = from_s3(bucket, tmp_path)
    assert folder.name == "tiny"
    assert read(folder) == CONTENT, "and nothing that ingle does not read"
    sizes = sum(-(-len(body) // 100_000) for body in CONTENT.values())
    assert len(gets(bucket)) == sizes > len(CONTENT), "in parts"
    bucket.asked.clear()
    assert from_s3(bucket, tmp_path) == folder
    assert gets(bucket) == [], "the second time only the listing is read"
    assert all("AWS4-HMAC-SHA256 Credential=me/" in asked[2]["Authorization"]
               for asked in bucket.asked)  # fmt: skip


def test_only_what_has_changed_is_fetched_again(bucket, tmp_path):
    folder = from_s3(bucket, tmp_path)
    bucket.asked.clear()
    bucket.objects["models/tiny/config.json"] = changed = CONTENT["config.json"] + b"\n"
    del bucket.objects["models/tiny/generation_config.json"]
    from_s3(bucket, tmp_path)
    assert {path for path, _, _ in gets(bucket)} == {"/bucket/models/tiny/config.json"}
    gone = {k: v for k, v in CONTENT.items() if k != "generation_config.json"}
    assert read(folder) == gone | {"config.json": changed}


def test_long_listings_come_in_pages(bucket, tmp_path):
    bucket.page_size = 2
    assert read(from_s3(bucket, tmp_path)) == CONTENT


@pytest.mark.parametrize(
    "faults", [[cut] * 5, [status(500), status(503), status(429)], [silent] * 3, [cut, silent]]
)
def test_what_breaks_is_continued(bucket, tmp_path, faults):
    bucket.faults = list(faults)
    assert read(from_s3(bucket, tmp_path)) == CONTENT
    assert bucket.faults == []


def test_a_broken_body_continues_where_it_broke(bucket, tmp_path):
    name = "model.safetensors"
    bucket.objects = {f"models/tiny/{name}": CONTENT[name][:50_000]}
    bucket.faults = [cut]
    from_s3(bucket, tmp_path)
    assert [asked[1] for asked in gets(bucket)] == ["bytes=0-49999", "bytes=25000-49999"]


def test_a_store_that_stays_broken_ends_with_its_answer(bucket, tmp_path):
    bucket.faults = [status(503)] * 100
    with pytest.raises(ModelError, match=r"HTTP 503 .* \(6 times\)"):
        from_s3(bucket, tmp_path)


def test_wrong_keys_are_not_tried_again(bucket, tmp_path):
    bucket.faults = [status(403)] * 100
    with pytest.raises(ModelError, match="HTTP 403 Forbidden; are the credentials right"):
        from_s3(bucket, tmp_path)
    assert len(bucket.faults) > 80


def test_an_object_that_changes_meanwhile_is_refused(bucket, tmp_path):
    bucket.multipart = True
    name = "models/tiny/model.safetensors"

    def change(handler, body, first):
        if not handler.path.endswith("model.safetensors") or first == 0:
            return False
        bucket.objects[name] = body[::-1]
        send(handler, 412, b"")
        return True

    bucket.faults = [change]
    with pytest.raises(ModelError, match="has changed while it was fetched"):
        from_s3(bucket, tmp_path)
    folder = next((tmp_path / "s3").rglob("tiny"))
    assert "model.safetensors" not in read(folder), "a file under its name is whole"
    assert read(from_s3(bucket, tmp_path))["model.safetensors"] == bucket.objects[name]


def test_wrong_bytes_are_refused_and_fetched_again_the_next_time(bucket, tmp_path):
    def lie(handler, body, first):
        if not handler.path.endswith("/config.json"):
            return False
        span = f"bytes 0-{len(body) - 1}/{len(body)}"
        send(handler, 206, b"x" * len(body), {"Content-Range": span})
        return True

    bucket.faults = [lie]
    with pytest.raises(ModelError, match="md5 of what came is"):
        from_s3(bucket, tmp_path)
    assert read(from_s3(bucket, tmp_path)) == CONTENT


def test_objects_that_the_store_encrypts_with_kms_have_no_hash_to_check(bucket, tmp_path):
    bucket.kms = True
    assert read(from_s3(bucket, tmp_path)) == CONTENT


def test_parts_of_the_wrong_place_are_refused(bucket, tmp_path):
    def shifted(handler, body, first):
        send(handler, 206, body[:10], {"Content-Range": f"bytes 1-10/{len(body)}"})
        return True

    bucket.faults = [shifted]
    with pytest.raises(ModelError, match="were asked for, and status 206"):
        from_s3(bucket, tmp_path)


def test_a_fetch_that_was_stopped_goes_on_with_the_parts_that_are_missing(bucket, tmp_path):
    name = "model.safetensors"
    size = len(CONTENT[name])
    assert size > 300_000
    stop = threading.Event()

    def die(handler, body, first):
        if not handler.path.endswith(name) or first < 200_000:
            return False
        stop.set()
        send(handler, 403, b"")
        return True

    bucket.faults = [die] * 20
    with pytest.raises(ModelError, match="403"):
        from_s3(bucket, tmp_path)
    assert stop.is_set()
    with bucket.lock:  # Which the last answer may still hold.
        bucket.faults = []
    bucket.asked.clear()
    assert read(from_s3(bucket, tmp_path))[name] == CONTENT[name]
    again = {asked[1] for asked in gets(bucket) if asked[0].endswith(name)}
    assert "bytes=200000-299999" in again
    assert len(again) < -(-size // 100_000), "not all parts"


def test_a_signature_is_the_one_of_the_documented_example():
    """GET of a bucket's listing, from Amazon's page on Signature Version 4."""
    store = s3.Store(
        "https://examplebucket.s3.amazonaws.com",
        "us-east-1",
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    )
    now = datetime.datetime(2013, 5, 24, tzinfo=datetime.UTC)
    headers = store.sign("https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J", now)
    signature = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    assert headers["Authorization"].endswith(f"Signature={signature}")
    assert "host" not in headers


def test_without_keys_nothing_is_signed(bucket, tmp_path):
    s3.fetch_from_s3(MODEL, tmp_path, {"AWS_ENDPOINT_URL": bucket.url})
    assert all("Authorization" not in asked[2] for asked in bucket.asked)


def test_a_hub_s_model_lies_in_the_cache_as_its_tools_keep_it(repository, tmp_path):
    folder = from_hub(repository, tmp_path)
    assert folder == tmp_path / "models--org--tiny" / "snapshots" / COMMIT
    assert read(folder) == CONTENT
    assert (folder / "config.json").is_symlink()
    assert (tmp_path / "models--org--tiny" / "refs" / "main").read_text() == COMMIT
    assert all(asked[2]["Authorization"] == "Bearer hf_x" for asked in repository.asked)
    repository.asked.clear()
    assert from_hub(repository, tmp_path) == folder
    assert gets(repository) == []
    by_commit = hub.HubModel("org/tiny", COMMIT)
    repository.asked.clear()
    assert from_hub(repository, tmp_path, by_commit) == folder
    assert repository.asked == [], "a commit that is whole needs no question"


def test_the_token_stays_with_the_hub(repository, tmp_path):
    other = Store()
    other.objects = CONTENT
    with other.serve() as url:

        def elsewhere(handler, body, first):
            target = url + handler.path
            send(handler, 302, b"", {"Location": target})
            return True

        repository.faults = [elsewhere] * 100
        assert read(from_hub(repository, tmp_path)) == CONTENT
    assert other.asked
    assert all("Authorization" not in asked[2] for asked in other.asked)


def test_wrong_bytes_of_a_hub_are_refused(repository, tmp_path):
    card = repository.card()
    card["siblings"][0]["blobId"] = "0" * 40
    repository.card = lambda: card
    with pytest.raises(ModelError, match=r"(git|sha256) of what came is"):
        from_hub(repository, tmp_path)


def test_a_listing_that_is_none_is_refused(repository, tmp_path):
    for card in ({}, [], {"sha": "../../x", "siblings": []}, {"sha": COMMIT, "siblings": [{}]}):
        repository.card = lambda card=card: card
        with pytest.raises(ModelError, match="is no listing of a model"):
            from_hub(repository, tmp_path)


def test_names_that_lead_out_of_the_folder_are_left_out():
    for name in ("../x.json", "/etc/x.json", "a/b.json", ".x.json", "x.json\n", "x.py", "x.bin"):
        assert not files.wanted(name), name
    for name in ("config.json", "model-00001-of-2.safetensors", "1_Pooling/config.json"):
        assert files.wanted(name), name


def test_a_single_gguf_is_taken_and_several_are_refused():
    def of(*names, only=None):
        listed = [files.RemoteFile(name, "u", 1) for name in names]
        return [file.name for file in files.chosen(listed, "s3://b/p", only)]

    assert of("a.gguf", "config.json") == ["a.gguf"]
    assert of("a.gguf", "m.safetensors", "config.json") == ["m.safetensors", "config.json"]
    with pytest.raises(ModelError, match=r"add one of its GGUF files to the address: a\.gguf, b"):
        of("a.gguf", "b.gguf")
    with pytest.raises(ModelError, match=r"neither \.safetensors nor \.gguf"):
        of("config.json")
    assert of("a.gguf", "b.gguf", "m.safetensors", only="b.gguf") == ["b.gguf"]
    with pytest.raises(ModelError, match=r"has no such file; GGUF files there: a\.gguf"):
        of("a.gguf", only="c.gguf")


def test_one_of_several_gguf_files_is_named_in_the_address(bucket, repository, tmp_path):
    two = {"a.gguf": b"GGUF a", "b.gguf": b"GGUF b"}
    bucket.objects = {f"models/tiny/{name}": body for name, body in two.items()}
    repository.objects = two
    environment = {"AWS_ENDPOINT_URL": bucket.url}
    for name, body in two.items():
        source = s3.s3_model(f"s3://bucket/models/tiny/{name}")
        path = Path(s3.fetch_from_s3(source, tmp_path / "s3", environment))
        assert (path.name, path.read_bytes()) == (name, body)
        source = hub.hub_model(f"hf://org/tiny/{name}@v1", False)
        assert source == hub.HubModel("org/tiny", "v1", name)
        for _ in range(2):
            path = from_hub(repository, tmp_path / "hub", source)
            assert (path.name, path.read_bytes()) == (name, body)


def test_addresses():
    assert s3.s3_model("s3://bucket/a/b/") == s3.S3Model("bucket", "a/b")
    assert s3.s3_model("/local") is None
    for bad in ("s3://", "s3://bucket", "s3://B/x", "s3://bucket/../x", "s3://bucket//x"):
        with pytest.raises(ConfigError, match="must be s3://BUCKET/PREFIX"):
            s3.s3_model(bad)
    assert hub.hub_model("hf://org/name@v1.0", False) == hub.HubModel("org/name", "v1.0")
    assert hub.hub_model("hf://org/name", False) == hub.HubModel("org/name", "main")
    assert hub.hub_model("org/name", False) is None
    assert hub.hub_model("org/name", True) == hub.HubModel("org/name")
    for bad in ("hf://name", "hf://org/name@", "hf://org/../name", "hf://org/name@../x y"):
        with pytest.raises(ConfigError, match="must be hf://ORG/NAME"):
            hub.hub_model(bad, True)


def test_a_local_model_is_left_alone():
    settings = Settings(model=str(TINY), allow_download=True)
    assert fetched(settings) is settings


def test_an_engine_runs_a_model_of_a_bucket(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url)
    source = "s3://bucket/models/tiny"
    with ingle.Engine(source, device="cpu", download_dir=tmp_path) as engine:
        assert engine.settings.model_name() == "tiny"
        [output] = engine.generate("Hello", ingle.SamplingParams(max_tokens=3, temperature=0))
    with ingle.Engine(str(TINY), device="cpu") as engine:
        [same] = engine.generate("Hello", ingle.SamplingParams(max_tokens=3, temperature=0))
    assert output.outputs == same.outputs
    assert json.loads((next(tmp_path.rglob(".ingle-files"))).read_bytes()).keys() == CONTENT.keys()


def test_a_locked_server_runs_models_of_a_hub_and_a_bucket(bucket, repository, tmp_path):
    environment = {
        "HF_ENDPOINT": repository.url,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "AWS_ENDPOINT_URL": bucket.url,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    sources = ("--model", "hub=hf://org/tiny@main", "--model", "s3=s3://bucket/models/tiny")
    with Several(*sources, "--device", "cpu", environment=environment) as worker:
        assert "hardening   auto" in worker.summary
        choices = [worker.complete(model=name)["choices"] for name in ("hub", "s3")]
        assert choices[0] == choices[1]
        assert worker.stop() == 0, worker.errors()
        assert "fetched model.safetensors: 0.7 MB" in worker.errors()
    with Worker(
        "--device", "cpu", "--allow-download", model="org/tiny", environment=environment
    ) as w:
        assert w.complete()["model"] == "org/tiny"


def test_nothing_is_fetched_unless_it_is_asked_for(repository, tmp_path):
    command = [sys.executable, "-m", "ingle", "serve", "org/tiny", "--device", "cpu", "--port", "0"]
    environment = os.environ | {"HF_ENDPOINT": repository.url, "HF_HUB_CACHE": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "model org/tiny: no such folder; --allow-download fetches it" in done.stderr
    assert repository.asked == []
