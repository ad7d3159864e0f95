"""Later starts use what an earlier one has fetched, and never files that have changed since."""

import hashlib
import json
import logging
import os
from pathlib import Path

import pytest

from ingle.config import Settings
from ingle.errors import ModelError
from ingle.model_set import ModelEntry, ModelSet
from ingle.remote import fetched_set, hub, notes, s3
from remote.fetching import CONTENT, KEYS, MODEL, from_hub, from_s3, gets, read
from remote.store import COMMIT

WEIGHTS = "model.safetensors"
PINNED = hub.HubModel("org/tiny", COMMIT)


def flip(path, keep_times=False):
    """Changes one byte of a file in place, as a disk or a program with a bug would."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)[0]
        file.seek(before.st_size // 2)
        file.write(bytes([byte ^ 1]))
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


UNKNOWN = json.dumps(
    {WEIGHTS: {"content": "crc:00", "size": 1, "mtime_ns": 1, "ctime_ns": 1, "inode": 1}}
)
"""Notes of a version that knows other hashes."""


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files whose content is read again."""
    seen, real = [], notes.hash_of

    def seeing(path, kind):
        seen.append(path.name)
        return real(path, kind)

    monkeypatch.setattr(notes, "hash_of", seeing)
    return seen


def thorough(store, cache):
    environment = {"AWS_ENDPOINT_URL": store.url, **KEYS}
    return Path(s3.fetch_from_s3(MODEL, cache, environment, thorough=True))


def test_files_that_look_as_they_did_are_not_read_again(bucket, tmp_path, hashed, caplog):
    caplog.set_level(logging.INFO, "ingle")
    from_s3(bucket, tmp_path)
    from_s3(bucket, tmp_path)
    assert hashed == []
    assert f"{len(CONTENT)} files, of which 0 were hashed" in caplog.messages[-1]
    thorough(bucket, tmp_path)
    assert sorted(hashed) == sorted(CONTENT), "unless that is asked for"


@pytest.mark.parametrize("multipart", [False, True])
@pytest.mark.parametrize("keep_times", [False, True])
def test_a_changed_file_of_a_bucket_is_fetched_again(bucket, tmp_path, multipart, keep_times):
    bucket.multipart = multipart
    folder = from_s3(bucket, tmp_path)
    bucket.asked.clear()
    flip(folder / WEIGHTS, keep_times)
    assert read(from_s3(bucket, tmp_path)) == CONTENT
    assert {path for path, _, _ in gets(bucket)} == {f"/bucket/models/tiny/{WEIGHTS}"}


def test_a_file_that_was_only_touched_is_hashed_once(bucket, tmp_path, hashed):
    folder = from_s3(bucket, tmp_path)
    bucket.asked.clear()
    os.utime(folder / WEIGHTS)
    from_s3(bucket, tmp_path)
    from_s3(bucket, tmp_path)
    assert hashed == [WEIGHTS]
    assert gets(bucket) == []


def test_a_file_that_was_cut_off_is_fetched_again_without_hashing(bucket, tmp_path, hashed):
    folder = from_s3(bucket, tmp_path)
    os.truncate(folder / WEIGHTS, 1000)
    assert read(from_s3(bucket, tmp_path)) == CONTENT
    assert hashed == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"config.json": {"content": "sha256:0"}}', UNKNOWN, "9" * 9]
)
def test_without_usable_notes_the_stores_hashes_decide(bucket, tmp_path, hashed, text):
    folder = from_s3(bucket, tmp_path)
    bucket.asked.clear()
    flip(folder / WEIGHTS)
    (folder / notes.NAME).write_text(text)
    assert read(from_s3(bucket, tmp_path)) == CONTENT
    assert {path for path, _, _ in gets(bucket)} == {f"/bucket/models/tiny/{WEIGHTS}"}
    assert sorted(hashed) == sorted(CONTENT)


def test_without_notes_and_hashes_everything_is_fetched(bucket, tmp_path):
    bucket.multipart = True
    folder = from_s3(bucket, tmp_path)
    bucket.asked.clear()
    (folder / notes.NAME).unlink()
    assert read(from_s3(bucket, tmp_path)) == CONTENT
    assert len({path for path, _, _ in gets(bucket)}) == len(CONTENT)


def test_weights_that_the_bucket_does_not_have_are_not_served_with_others(bucket, tmp_path):
    folder = from_s3(bucket, tmp_path)
    # As a start that ended between a file and its note leaves it.
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"old")
    assert read(from_s3(bucket, tmp_path)) == CONTENT


@pytest.mark.parametrize("keep_times", [False, True])
@pytest.mark.parametrize("model", [None, PINNED])
def test_a_changed_blob_of_a_hub_is_fetched_again(repository, tmp_path, model, keep_times):
    snapshot = from_hub(repository, tmp_path, model)
    repository.asked.clear()
    flip((snapshot / WEIGHTS).resolve(), keep_times)
    assert read(from_hub(repository, tmp_path, model)) == CONTENT
    assert {path for path, _, _ in gets(repository)} == {f"/org/tiny/resolve/{COMMIT}/{WEIGHTS}"}


def test_an_unchanged_commit_of_a_hub_needs_no_question_and_no_reading(
    repository, tmp_path, hashed
):
    from_hub(repository, tmp_path, PINNED)
    repository.asked.clear()
    from_hub(repository, tmp_path, PINNED)
    assert (repository.asked, hashed) == ([], [])


def test_a_changed_blob_without_a_hub_ends_the_start(repository, tmp_path):
    snapshot = from_hub(repository, tmp_path, PINNED)
    flip((snapshot / WEIGHTS).resolve())
    environment = {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HUB_CACHE": str(tmp_path)}
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:1"):
        hub.fetch_from_hub(PINNED, None, environment)


def test_models_of_one_start_make_no_room_for_each_other(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url)
    for name in ("a", "b"):
        bucket.objects |= {f"{name}/{file}": body for file, body in CONTENT.items()}
    entries = [
        ModelEntry(
            name=name,
            settings=Settings(
                model=f"s3://bucket/{name}",
                served_model_name=name,
                download_dir=tmp_path,
                download_cache_bytes=int(1.5 * sum(map(len, CONTENT.values()))),
            ),
        )
        for name in ("a", "b")
    ]
    with pytest.raises(ModelError, match=r"are too few beside .*/a, which this start needs too"):
        fetched_set(ModelSet(tuple(entries)))
    assert [each.name for each in (tmp_path / "s3").glob("*/?") if read(each)] == ["a"]


def test_notes_name_each_file_and_its_hash(bucket, tmp_path):
    bucket.multipart = True
    folder = from_s3(bucket, tmp_path)
    found = json.loads((folder / notes.NAME).read_bytes())
    assert found.keys() == CONTENT.keys()
    for name, note in found.items():
        assert note["content"] == notes.hash_of(folder / name, "parts")


def test_a_hash_of_parts_covers_every_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(notes, "PART_BYTES", 1000)
    place = tmp_path / "file"
    place.write_bytes(bytes(2500))
    digests = [hashlib.sha256(bytes(size)).digest() for size in (1000, 1000, 500)]
    expected = f"parts:{hashlib.sha256(b''.join(digests)).hexdigest()}"
    assert notes.hash_of(place, "parts") == expected
    for at in (0, 999, 1000, 2499):
        place.write_bytes(bytes(at) + b"x" + bytes(2499 - at))
        assert notes.hash_of(place, "parts") != expected
