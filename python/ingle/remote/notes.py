"""What fetched files were when their content was checked, so that later starts notice a change.

A file with the size, times and inode that it had then is taken as it is; any other one is hashed
again. This finds accidents: disks, copies, editors. Whoever can write to the folder can change the
notes too. Blocking.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from ingle.progress import Progress
from ingle.remote.atomic import replace

log = logging.getLogger("ingle")


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file whose content was checked."""

    content: Annotated[str, Meta(pattern="^(sha256|git|md5|parts):[0-9a-f]{32,64}$")]
    """Kind and hexadecimal hash, such as `sha256:1a2b...`."""
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    etag: str = ""
    """What the store called this content; empty if the file's name does."""

    @classmethod
    def of(cls, path: Path, content: str, etag: str) -> Self:
        """The file as it is now. Errors: OSError."""
        found = path.stat()
        return cls(content, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, etag)


class Notes:
    """The notes of one folder, by file name."""

    def __init__(self, folder: Path, thorough: bool = False) -> None:
        """Reads them; those that make no sense are dropped. `thorough`: believe no note."""
        self._path = folder / NAME
        self._thorough = thorough
        self.by_name: dict[str, Note] = {}
        """What is known of each file."""
        self.num_hashed = 0
        try:
            found: Any = json.loads(self._path.read_bytes())
            self.by_name = msgspec.convert(found, dict[str, Note])
        except (OSError, ValueError, RecursionError):
            pass

    def is_intact(self, name: str, path: Path, content: str, etag: str = "") -> bool:
        """Whether the file is what it was when it was fetched.

        `content`: what the store says that it is, for a file without a note. Errors: OSError.
        """
        note = self.by_name.get(name)
        if note is not None and note.etag != etag:
            # The store has other content now.
            return False
        if not path.is_file():
            return False
        expected = content if note is None else note.content
        if not expected:
            return False
        now = Note.of(path, expected, etag)
        if now == note and not self._thorough:
            return True
        if note is not None and now.size != note.size:
            log.warning(
                "%s has %d bytes and had %d: it is fetched again", path, now.size, note.size
            )
            return False
        found = hash_of(path, expected.partition(":")[0])
        self.num_hashed += 1
        if found != expected:
            log.warning("%s has changed (%s, was %s): it is fetched again", path, found, expected)
            return False
        self.by_name[name] = now
        return True

    def add(self, name: str, path: Path, content: str, etag: str = "") -> None:
        """A file has been fetched and checked. Errors: OSError."""
        self.by_name[name] = Note.of(path, content, etag)

    def write(self) -> None:
        """Replaces the file of notes in one piece. Errors: OSError."""
        notes = {name: msgspec.to_builtins(note) for name, note in self.by_name.items()}
        replace(self._path, json.dumps(notes))

    def report(self, model: object, num_files: int) -> None:
        """Logs what was looked at."""
        log.info(
            "%s: %d files, of which %d were hashed; the others have the size, times and inode that "
            "they had when they were",
            model, num_files, self.num_hashed,
        )  # fmt: skip


def hash_of(path: Path, kind: str) -> str:
    """The content of a file as notes have it. Errors: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return hash_of_open(fd, kind, path.name)
    finally:
        os.close(fd)


def hash_of_open(fd: int, kind: str, name: str) -> str:
    """The same for an open file.

    `kind`: sha256; md5; git, the SHA-1 of a git blob; or parts, the SHA-256 of the SHA-256s of its
    parts, which several threads compute.
    """
    size = os.fstat(fd).st_size
    progress = Progress(f"checking {name}", size)
    found = KINDS[kind](usedforsecurity=False)
    if kind == "parts":
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            for each in pool.map(
                lambda at: update(hashlib.sha256(), fd, at, at + PART_BYTES, progress),
                range(0, size, PART_BYTES),
            ):
                found.update(each.digest())
    else:
        if kind == "git":
            found.update(b"blob %d\0" % size)
        update(found, fd, 0, size, progress)
    progress.close()
    return f"{kind}:{found.hexdigest()}"


def update(hashed: Any, fd: int, at: int, end: int, progress: Progress) -> Any:
    """Adds bytes `at` to `end` of the file, as far as it has them. Errors: OSError."""
    # One small buffer: fresh pages would cost more than the hash.
    buffer = memoryview(bytearray(PIECE_BYTES))
    while count := os.preadv(fd, [buffer[: min(PIECE_BYTES, end - at)]], at):
        hashed.update(buffer[:count])
        at += count
        progress.add(count)
    return hashed


KINDS: dict[str, Callable[..., Any]] = {
    "sha256": hashlib.sha256,
    "git": hashlib.sha1,
    "md5": hashlib.md5,
    "parts": hashlib.sha256,
}
PART_BYTES = 16 << 20
"""Of a hash of parts. Notes on disk depend on it."""
NUM_THREADS = 8
NAME = ".ingle-files"
PIECE_BYTES = 1 << 18
