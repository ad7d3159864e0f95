"""Downloads files in parts, several at once, and resumes what a stopped process has left.

Blocking. A file under its own name is always whole and has been checked: it is renamed last.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ingle.errors import ModelError
from ingle.progress import Progress
from ingle.remote.atomic import replace
from ingle.remote.notes import hash_of_open
from ingle.remote.transport import Transport, pieces

log = logging.getLogger("ingle")


@dataclass(frozen=True)
class RemoteFile:
    """One file of a model."""

    name: str
    """Relative to the model's folder."""
    url: str
    size: int
    etag: str = ""
    """Pinned for all parts; empty if the store's address names the content already."""
    digest: str = ""
    """Hexadecimal; empty if the store gives none."""
    kind: Literal["sha256", "git", "md5"] = "sha256"
    """What `digest` is; `git` is the SHA-1 of a git blob."""

    @property
    def content(self) -> str:
        """`digest` as in `Note.content`; empty if the store gives none."""
        return f"{self.kind}:{self.digest}" if self.digest else ""


def wanted(name: str) -> bool:
    """Whether a model's file of this name is one that ingle reads."""
    if name == "1_Pooling/config.json":
        return True
    if len(name) > MOST_NAME or not PLAIN.fullmatch(name):
        return False
    if name.startswith(("consolidated", "pytorch_model")):
        return False
    return name.endswith(ENDINGS)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Makes the folder and waits until no other process fetches into it. Errors: OSError."""
    fd = locked(folder)
    while fd is None:
        fd = locked(folder)
    try:
        yield
    finally:
        os.close(fd)


def locked(folder: Path) -> int | None:
    """The lock file of a folder, locked; None if another process has removed the folder meanwhile.

    Errors: OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / LOCK
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(place, flags, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another process fetches into %s: waiting for it", folder)
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.path.samestat(os.fstat(fd), os.lstat(place)):
            return fd
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def size_of(path: Path) -> int:
    """The size of a file; -1 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def chosen(files: Sequence[RemoteFile], where: str, only: str | None = None) -> list[RemoteFile]:
    """The files to fetch: `only` this GGUF file, or a safetensors model, or the one GGUF file.

    Errors: ModelError if there is no model, or no single one.
    """
    files = [each for each in files if wanted(each.name)]
    gguf = [each for each in files if each.name.endswith(".gguf")]
    if only is not None:
        found = [each for each in gguf if each.name == only]
        if not found:
            shown = ", ".join(sorted(each.name for each in gguf)[:20]) or "none"
            raise ModelError(f"model {where}: has no such file; GGUF files there: {shown}")
        return found
    if any(each.name.endswith(".safetensors") for each in files):
        return [each for each in files if each not in gguf]
    if len(gguf) == 1:
        return gguf
    if gguf:
        shown = ", ".join(sorted(each.name for each in gguf)[:20])
        raise ModelError(f"model {where}: add one of its GGUF files to the address: {shown}")
    raise ModelError(f"model {where}: has neither .safetensors nor .gguf files")


def download(transport: Transport, file: RemoteFile, target: Path) -> str:
    """Fetches one file to `target`, whose folder exists; returns what it is, as in `Note.content`.

    Errors: ModelError, OSError.
    """
    if file.size > MOST_FILE_BYTES:
        raise ModelError(f"{file.url}: {file.size} bytes are more than {MOST_FILE_BYTES}")
    partial = target.with_name(f".{target.name}.partial")
    journal = Journal(target.with_name(f".{target.name}.parts"), file)
    if size_of(partial) != file.size:
        # Without its file the note says nothing, and holes would pass for parts.
        journal.done.clear()
    began = time.monotonic()
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(partial, flags, 0o644)
    try:
        os.ftruncate(fd, file.size)
        fresh = fetch_missing(transport, file, fd, journal)
        content = checked(transport, file, fd)
        os.fsync(fd)
    except WrongContentError:
        # Nothing of it can be trusted.
        journal.remove()
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    os.replace(partial, target)
    journal.remove()
    seconds = max(time.monotonic() - began, 1e-3)
    log.info("fetched %s: %.1f MB, %.0f MB/s", file.name, file.size / 1e6, fresh / seconds / 1e6)
    return content


def fetch_missing(transport: Transport, file: RemoteFile, fd: int, journal: "Journal") -> int:
    """Fetches the parts that are not here yet, several at once; returns their bytes.

    Errors: ModelError, OSError. Parts that came whole are noted in any case.
    """
    parts = list(pieces(file.size, PART_BYTES))
    missing = [number for number in range(len(parts)) if number not in journal.done]
    fresh = sum(parts[number][1] + 1 - parts[number][0] for number in missing)
    progress = Progress(file.name, file.size, file.size - fresh)

    def take(at: int, data: bytes) -> None:
        write(fd, data, at)
        progress.add(len(data))

    def fetch(number: int) -> int:
        first, last = parts[number]
        transport.read_range(file.url, file.etag, first, last, take)
        return number

    with ThreadPoolExecutor(max(1, min(NUM_THREADS, len(missing)))) as pool:
        running = [pool.submit(fetch, number) for number in missing]
        try:
            for each in as_completed(running):
                if not has_hash(transport, file):
                    # After a power cut nothing else would tell a part from a hole.
                    os.fdatasync(fd)
                journal.add(each.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            for each in running:
                # What others have brought meanwhile need not come again.
                if not each.cancelled() and each.exception() is None:
                    journal.add(each.result())
            raise
        finally:
            progress.close()
    return fresh


class WrongContentError(ModelError):
    """A whole file that is not what the store says that it is."""


class Journal:
    """Which parts of a file are here, on disk. A part is added after its bytes."""

    def __init__(self, path: Path, file: RemoteFile) -> None:
        self._path = path
        self._head = {"etag": file.etag, "digest": file.digest, "size": file.size}
        self.done: set[int] = set()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            found: Any = json.loads(path.read_bytes())
            if {key: found.get(key) for key in self._head} == self._head:
                self.done = {int(number) for number in found["done"]}

    def add(self, number: int) -> None:
        """A part is whole."""
        self.done.add(number)
        replace(self._path, json.dumps({**self._head, "done": sorted(self.done)}))

    def remove(self) -> None:
        """The file is whole."""
        self._path.unlink(missing_ok=True)


def write(fd: int, data: bytes, at: int) -> None:
    """Writes all of it. Errors: OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def has_hash(transport: Transport, file: RemoteFile) -> bool:
    """Whether what came can be checked; known once a part has come."""
    return bool(file.digest) and not (file.kind == "md5" and file.url in transport.encrypted)


def checked(transport: Transport, file: RemoteFile, fd: int) -> str:
    """The hash of what came. Errors: ModelError unless it is what the store promised, if it did."""
    promises = has_hash(transport, file)
    found = hash_of_open(fd, file.kind if promises else "parts", file.name)
    if promises and found != file.content:
        kind, _, digest = found.partition(":")
        message = f"{kind} of what came is {digest}, not {file.digest}"
        raise WrongContentError(f"{file.url}: {message}")
    return found


LOCK = ".ingle-lock"
ENDINGS = (".json", ".safetensors", ".gguf", ".jinja", ".model", ".txt")
PLAIN = re.compile(r"[A-Za-z0-9_][\w.+-]*")
PART_BYTES = 16 << 20
MOST_NAME = 200
"""Characters; a file system has 255 bytes for a name, and `.NAME.partial` is one too."""
NUM_THREADS = 8
MOST_FILE_BYTES = 1 << 40
