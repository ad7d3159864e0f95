"""Reads files that the operator names: as a whole, and never more than a bound. Any thread."""

import os
import stat
from collections.abc import Callable
from pathlib import Path


def read_bounded(
    path: Path, most_bytes: int, check: Callable[[os.stat_result], None] | None = None
) -> bytes:
    """The bytes of a file, or of a pipe, as from process substitution.

    `check` is called with what the open file is, before anything is read.
    Errors: OSError says what is wrong with the file.
    """
    with path.open("rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
            raise OSError("it is neither a file nor a pipe")
        if check is not None:
            check(found)
        parts: list[bytes] = []
        left = most_bytes + 1
        while left > 0 and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
        if left == 0:
            raise OSError(f"it is longer than {most_bytes} bytes")
        return b"".join(parts)
