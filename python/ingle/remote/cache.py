"""The size of the folder that models from buckets are fetched into. Blocking, any thread.

Each model has a folder of its own, `HASH/NAME`, whose time is that of its last use. Removing files
that a server has open takes nothing from it: it reads them until it closes them.
"""

import contextlib
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from ingle.errors import ModelError
from ingle.remote.files import LOCK

log = logging.getLogger("ingle")
PLACE = re.compile(r"[0-9a-f]{16}")
"""The name of the folder around a model's: a hash of its address."""


def trim(
    root: Path, most_bytes: int, wanted: Path, num_bytes: int, keep: Collection[Path] = ()
) -> None:
    """Removes models, those used longest ago first, until `num_bytes` more fit into `most_bytes`.

    `wanted` is the folder that they are for; it stays, and its files count as part of them. The
    folders `keep`, of other models of this start, stay too, and so does one into which another
    process fetches. Errors: ModelError if it cannot be done.
    """
    if num_bytes > most_bytes:
        message = f"the model has {num_bytes} bytes, more than {most_bytes}"
        raise ModelError(f"download_cache_bytes: {message}")
    folders = [each for each in root.glob("*/*") if is_ours(each)]
    taken = {each: bytes_of(each) for each in folders if each != wanted}
    needed = {each: taken[each] for each in taken.keys() & set(keep)}
    if sum(needed.values()) + num_bytes > most_bytes:
        shown = ", ".join(sorted(map(str, needed)))
        message = f"the model has {num_bytes} bytes, and {most_bytes} are too few beside {shown}"
        raise ModelError(f"download_cache_bytes: {message}, which this start needs too")
    for folder in sorted(taken.keys() - needed.keys(), key=last_use):
        if sum(taken.values()) + num_bytes <= most_bytes:
            return
        if remove(folder):
            log.info("removed %s: %d bytes, used longest ago", folder, taken.pop(folder))
    if sum(taken.values()) + num_bytes > most_bytes:
        busy = ", ".join(sorted(map(str, taken.keys() - needed.keys())))
        raise ModelError(f"download_cache_bytes: no room beside {busy}, which others fetch now")


def is_ours(folder: Path) -> bool:
    """Whether a fetch has made this folder: no link leads to it, and it has a fetch's lock."""
    places = (folder.parent, folder)
    return (
        PLACE.fullmatch(folder.parent.name) is not None
        and all(each.is_dir() and not each.is_symlink() for each in places)
        and (folder / LOCK).is_file()
    )


def last_use(folder: Path) -> float:
    """When a start last used the model in it."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def bytes_of(folder: Path) -> int:
    """What its files take on disk."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


def remove(folder: Path) -> bool:
    """Removes a model's folder, and the one around it; False while another process fetches."""
    try:
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
