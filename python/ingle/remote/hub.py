"""Models from a Hugging Face-compatible hub, into the cache that its own tools use.

HF_ENDPOINT and HF_TOKEN are honoured, HF_HUB_CACHE and HF_HOME say where the cache is. Its layout:
`models--ORG--NAME/blobs/HASH`, and links to them in `snapshots/COMMIT/FILE`. Blocking.
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ingle.errors import ConfigError, ModelError
from ingle.remote.atomic import replace
from ingle.remote.files import RemoteFile, alone, chosen, download
from ingle.remote.notes import Notes
from ingle.remote.settings import credential, endpoint
from ingle.remote.transport import Transport

log = logging.getLogger("ingle")


@dataclass(frozen=True)
class HubModel:
    """A model of a hub."""

    repository: str
    """ORG/NAME."""
    revision: str = "main"
    """A branch, a tag or a commit."""
    file: str | None = None
    """One of several GGUF files."""

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        return f"hf://{self.repository}{file}@{self.revision}"


def hub_model(model: str, allow_download: bool) -> HubModel | None:
    """The hub's model that a source names; None if it is something else.

    A plain ORG/NAME is one only with `allow_download`, and where no such folder is.
    Errors: ConfigError for an address that makes no sense.
    """
    if model.startswith("hf://"):
        found = ADDRESS.fullmatch(model.removeprefix("hf://"))
        if found is None or not is_plain(found[1]) or not is_revision(found[3] or "main"):
            forms = "hf://ORG/NAME, with /FILE.gguf and @REVISION where they are needed"
            raise ConfigError(f"model: must be {forms}: {model}")
        return HubModel(found[1], found[3] or "main", found[2])
    if not allow_download or os.path.exists(model) or not is_plain(model):
        return None
    if not REPOSITORY.fullmatch(model):
        return None
    return HubModel(model)


def is_plain(name: str) -> bool:
    """Whether a repository's folder can be named after it: `--` stands for a slash there."""
    return ".." not in name and "--" not in name


def is_revision(name: str) -> bool:
    """Whether git could have it, and a file below `refs` its name."""
    return ".." not in name and "//" not in name and not name.endswith("/")


def fetch_from_hub(
    model: HubModel,
    download_dir: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    thorough: bool = False,
) -> str:
    """The folder of the model's snapshot, or its one file.

    `thorough`: hash the files that are here, also if they look unchanged. Errors: ModelError.
    """
    hub = endpoint(environment, "HF_ENDPOINT") or "https://huggingface.co"
    token = credential(environment, "HF_TOKEN")
    headers = {"User-Agent": "ingle"} | ({"Authorization": f"Bearer {token}"} if token else {})
    root = download_dir or cache_folder(environment)
    folder = root / f"models--{model.repository.replace('/', '--')}"
    transport = Transport(lambda url: headers)
    commit = cached_commit(folder, model.revision)
    notes = Notes(folder, thorough)
    if commit is not None and is_complete(folder, commit, model.file, notes):
        notes.report(model, len(notes.by_name))
        return str(folder / "snapshots" / commit / (model.file or ""))
    commit, files = listed(transport, hub, model)
    snapshot = folder / "snapshots" / commit
    try:
        for part in (folder / "blobs", folder / "refs", snapshot):
            part.mkdir(parents=True, exist_ok=True)
        with alone(folder):
            for file in files:
                blob = folder / "blobs" / file.digest
                if not notes.is_intact(file.digest, blob, file.content):
                    notes.add(file.digest, blob, download(transport, file, blob))
                link(snapshot / file.name, blob)
            note = folder / "refs" / model.revision
            note.parent.mkdir(parents=True, exist_ok=True)
            replace(note, commit)
            replace(complete_mark(folder, commit, model.file), "")
            notes.write()
            notes.report(model, len(files))
    except OSError as error:
        raise ModelError(f"model {model}: cannot write to {folder}: {error}") from error
    return str(snapshot / (model.file or ""))


def listed(transport: Transport, hub: str, model: HubModel) -> tuple[str, list[RemoteFile]]:
    """The commit of a revision and its files. Errors: ModelError."""
    revision = quote(model.revision, safe="")
    url = f"{hub}/api/models/{model.repository}/revision/{revision}?blobs=true"
    try:
        found: Any = json.loads(transport.read(url, MOST_LISTING_BYTES))
        commit = str(found["sha"])
        if not COMMIT.fullmatch(commit):
            raise ValueError(f"commit {commit[:60]!r}")
        base = f"{hub}/{model.repository}/resolve/{commit}"
        files = [file_of(base, each) for each in found["siblings"]]
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise ModelError(f"{url}: is no listing of a model: {error!r}") from error
    return commit, chosen([file for file in files if file is not None], str(model), model.file)


def file_of(base: str, sibling: Any) -> RemoteFile | None:
    """One file of a listing; None for one without a hash, which cannot be checked."""
    name, large = str(sibling["rfilename"]), sibling.get("lfs")
    digest = str(large["sha256"] if large else sibling.get("blobId") or "")
    size = int(large["size"] if large else sibling.get("size") or 0)
    if not HASH.fullmatch(digest):
        return None
    if size < 0:
        raise ValueError(f"a size of {size}")
    kind = "sha256" if large else "git"
    return RemoteFile(
        name=name,
        url=f"{base}/{quote(name)}",
        size=size,
        digest=digest,
        kind="sha256" if kind == "sha256" else "git",
    )


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where the hub's tools keep models."""
    if folder := environment.get("HF_HUB_CACHE"):
        return Path(folder)
    home = environment.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"


def cached_commit(folder: Path, revision: str) -> str | None:
    """The commit that needs no question: the revision itself, if it is one."""
    return revision if COMMIT.fullmatch(revision) and (folder / "snapshots").is_dir() else None


def is_complete(folder: Path, commit: str, file: str | None, notes: Notes) -> bool:
    """Whether a fetch of this commit has ended well, and nothing has been removed or changed since.

    Errors: ModelError.
    """
    snapshot = folder / "snapshots" / commit
    if not complete_mark(folder, commit, file).exists() or not snapshot.is_dir():
        return False
    links = [each for each in snapshot.rglob("*") if not each.is_dir()]
    try:
        # Each, so that one log names all that has changed.
        intact = [is_blob_intact(each, notes) for each in links]
    except OSError as error:
        raise ModelError(f"cannot read {snapshot}: {error}") from error
    if notes.num_hashed:
        try:
            with alone(folder):
                notes.write()
        except OSError as error:
            log.info("%s: cannot be noted, each start hashes again: %s", folder, error)
    return all(intact)


def is_blob_intact(path: Path, notes: Notes) -> bool:
    """Whether a file of a snapshot is what its blob's name says. Errors: OSError."""
    blob = path.resolve()
    if not HASH.fullmatch(blob.name):
        # Not the hub's layout: someone has put it here.
        return path.exists()
    kind = "sha256" if len(blob.name) == SHA256_DIGITS else "git"
    return notes.is_intact(blob.name, blob, f"{kind}:{blob.name}")


def complete_mark(folder: Path, commit: str, file: str | None) -> Path:
    """A file that is there once all of a snapshot is, or its one file."""
    return folder / f".ingle-{commit}{f'-{file}' if file else ''}"


def link(path: Path, blob: Path) -> None:
    """Makes `path` a relative link to the blob."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(blob, path.parent)
    if path.is_symlink() and os.readlink(path) == target:
        return
    temporary = path.with_name(f".{path.name}.link")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    os.symlink(target, temporary)
    os.replace(temporary, path)


REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILE = r"[A-Za-z0-9_][\w.+-]*\.gguf"
ADDRESS = re.compile(rf"({REPOSITORY.pattern})(?:/({FILE}))?(?:@([A-Za-z0-9][\w./-]*))?")
SHA256_DIGITS = 64
COMMIT = re.compile(r"[0-9a-f]{40}")
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MOST_LISTING_BYTES = 16 << 20
