"""The cache of fetched models: its size, links that lie in it, and whose its files are."""

import fcntl
import io
import logging
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ingle.config import Settings
from ingle.errors import ConfigError, ModelError
from ingle.model_set import ModelEntry, ModelSet
from ingle.progress import Progress
from ingle.remote import s3
from ingle.remote.cache import bytes_of
from ingle.remote.files import LOCK, alone
from ingle.server.fetch_as import local_set_as
from remote.fetching import CONTENT, KEYS, from_hub, from_s3, read
from server.worker import wait_for

SIZE = sum(map(len, CONTENT.values()))


@pytest.fixture
def several(bucket):
    """Three models of one size."""
    for name in ("a", "b", "c"):
        bucket.objects |= {f"{name}/{file}": body for file, body in CONTENT.items()}
    return bucket


def fetch(store, cache, prefix, most_bytes=None):
    environment = {"AWS_ENDPOINT_URL": store.url, **KEYS}
    model = s3.S3Model("bucket", prefix)
    return Path(s3.fetch_from_s3(model, cache, environment, most_bytes))


def test_the_model_used_longest_ago_makes_room(several, tmp_path):
    folders = [fetch(several, tmp_path, name) for name in ("a", "b")]
    for age, folder in zip((10, 20), folders, strict=True):
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    fetch(several, tmp_path, "a")  # It is used again.
    limit = int(2.5 * bytes_of(folders[0]))
    new = fetch(several, tmp_path, "c", limit)
    assert read(new) == CONTENT
    assert read(folders[0]) == CONTENT
    assert not folders[1].exists()
    assert not folders[1].parent.exists(), "nothing is left of it"
    assert fetch(several, tmp_path, "c", limit) == new, "its own files are no reason to remove any"
    assert read(folders[0]) == CONTENT


def test_a_model_larger_than_the_cache_is_refused_and_nothing_removed(several, tmp_path):
    folder = fetch(several, tmp_path, "a")
    with pytest.raises(ModelError, match=f"download_cache_bytes: the model has {SIZE} bytes, more"):
        fetch(several, tmp_path, "b", SIZE - 1)
    assert read(folder) == CONTENT


def test_a_model_that_another_process_fetches_stays(several, tmp_path):
    folder = fetch(several, tmp_path, "a")
    with alone(folder), pytest.raises(ModelError, match="download_cache_bytes: no room beside"):
        fetch(several, tmp_path, "b", SIZE + 1)
    assert read(folder) == CONTENT


def test_folders_that_no_fetch_has_made_are_never_removed(several, tmp_path):
    mine = tmp_path / "mine"
    (mine / "photos").mkdir(parents=True)
    (mine / "photos" / "one").write_bytes(bytes(SIZE))
    cache = tmp_path / "cache"
    folder = fetch(several, cache, "a")
    (cache / "s3" / ("0" * 16)).symlink_to(mine)
    (cache / "s3" / ("1" * 16)).mkdir()
    (cache / "s3" / ("1" * 16) / "photos").symlink_to(mine / "photos")
    (cache / "s3" / "notes").mkdir()
    (cache / "s3" / "notes" / "mine").mkdir()
    (cache / "s3" / ("2" * 16) / "mine").mkdir(parents=True)
    fetch(several, cache, "b", bytes_of(folder) + SIZE // 2)
    assert not folder.exists()
    assert (mine / "photos" / "one").read_bytes() == bytes(SIZE)
    assert [each.name for each in mine.rglob("*")] == ["photos", "one"]
    assert (cache / "s3" / "notes" / "mine").is_dir()
    assert (cache / "s3" / ("2" * 16) / "mine").is_dir()


def test_a_fetch_that_has_waited_for_a_folder_which_was_removed_makes_it_anew(
    several, tmp_path, caplog
):
    caplog.set_level(logging.INFO, "ingle")
    folder = fetch(several, tmp_path, "a")
    with ThreadPoolExecutor(1) as pool:
        with alone(folder):
            waiting = pool.submit(fetch, several, tmp_path, "a")
            wait_for(lambda: "waiting for it" in caplog.text, 60, lambda: caplog.text)
            shutil.rmtree(folder)
        assert read(waiting.result(60)) == CONTENT
    with alone(folder), pytest.raises(BlockingIOError):
        fcntl.flock(os.open(folder / LOCK, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("name", [".ingle-files.new", ".config.json.parts.new"])
def test_a_link_in_a_buckets_folder_leads_no_write_elsewhere(bucket, tmp_path, name):
    folder = from_s3(bucket, tmp_path / "cache")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / name).symlink_to(victim)
    from_s3(bucket, tmp_path / "cache")
    assert victim.read_text() == "mine"
    assert read(folder) == CONTENT


def test_a_link_in_a_hubs_folder_leads_no_write_elsewhere(repository, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    refs = tmp_path / "cache" / "models--org--tiny" / "refs"
    refs.mkdir(parents=True)
    (refs / ".main.new").symlink_to(victim)
    from_hub(repository, tmp_path / "cache")
    assert victim.read_text() == "mine"


NOBODY = (65534, 65534)


def models(cache, source="s3://bucket/models/tiny"):
    settings = Settings(model=source, download_dir=cache)
    return ModelSet((ModelEntry(name="tiny", settings=settings),))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_files_are_fetched_by_the_user_who_serves_them(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    # Not below tmp_path, which only this user can enter.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)  # The other user writes there.
        local = local_set_as(models(Path(place) / "cache"), NOBODY)
        folder = Path(local.process.model)
        assert read(folder) == CONTENT
        assert {each.stat().st_uid for each in folder.iterdir()} == {NOBODY[0]}
        assert [entry.name for entry in local] == ["tiny"]
        assert os.geteuid() == 0, "only the other process has become another user"
        os.chmod(place, 0o755)
        shutil.rmtree(folder.parent.parent.parent)
        with pytest.raises(ModelError, match="cannot write to"):
            local_set_as(models(Path(place) / "cache"), NOBODY)
        with pytest.raises(ConfigError, match="model: must be s3://BUCKET/PREFIX"):
            local_set_as(models(Path(place), "s3://x"), NOBODY)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_how_far_a_file_is_and_a_log_does_not():
    now = [0.0]
    out = Terminal()
    bar = Progress("model.safetensors", 4_000_000, 1_000_000, out, lambda: now[0])
    now[0] = 1.0
    bar.add(1_000_000)
    bar.add(1_000)  # Too soon for another look.
    line = "\rmodel.safetensors [############------------]  50% 2 of 4 MB, 1 MB/s, 2 s left\x1b[K"
    assert out.getvalue() == line
    bar.close()
    assert out.getvalue() == line + "\r\x1b[K", "nothing of it stays"
    log = io.StringIO()
    bar = Progress("model.safetensors", 4_000_000, 0, log)
    bar.add(4_000_000)
    bar.close()
    assert log.getvalue() == ""


def test_a_fetch_counts_every_byte_once_and_once_while_it_checks(bucket, tmp_path, monkeypatch):
    seen = {False: 0, True: 0}

    def add(self, num_bytes):
        seen[self._name.startswith("checking ")] += num_bytes

    monkeypatch.setattr(Progress, "add", add)
    from_s3(bucket, tmp_path)
    assert seen == {False: SIZE, True: SIZE}
