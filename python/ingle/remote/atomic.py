"""Small files that are there whole or not at all. Blocking."""

import os
from pathlib import Path


def replace(path: Path, text: str) -> None:
    """Writes a small file in one piece, never through a link that lies there. Errors: OSError."""
    temporary = path.with_name(f".{path.name.removeprefix('.')}.new")
    temporary.unlink(missing_ok=True)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(temporary, flags, 0o644), "w") as file:
        file.write(text)
    os.replace(temporary, path)
