"""The name that a model has in requests unless a setting gives one. Runs once."""

from pathlib import Path


def name_of(path: Path) -> str:
    """The model name for a path.

    A snapshot in a Hugging Face cache, `models--ORG--NAME/snapshots/HASH`, is `ORG/NAME`, also
    behind a symbolic link. A file keeps its own name: in a cache it is a link to a numbered blob.
    """
    try:
        if path.is_file():
            return path.name
        folder = path.resolve()
    except OSError:
        # Such a path cannot be opened either; the core reports that.
        return path.name
    if folder.parent.name == "snapshots":
        kind, _, name = folder.parent.parent.name.partition("--")
        if kind == "models" and name:
            return name.replace("--", "/", 1)
    return folder.name
