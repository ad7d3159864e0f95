"""The Makefile does nothing until a command is asked for; clones that share a target folder build
their own sources."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG_AGO = (10**9, 10**9)


def snapshot(*folders: Path) -> dict[str, int]:
    """Every file and folder with the time of its last change."""
    return {
        str(path): path.stat().st_mtime_ns
        for folder in folders
        for path in [folder, *folder.rglob("*")]
    }


@pytest.fixture
def clone(tmp_path):
    """Makes a clone with one program that prints a text; returns its folder, and what runs a
    command in it. All clones share a target folder."""

    def make(name: str, prints: str):
        folder = tmp_path / name
        source = folder / "rust" / "app" / "src" / "main.rs"
        source.parent.mkdir(parents=True)
        source.write_text(f'fn main() {{ println!("{prints}"); }}')
        (folder / "rust" / "app" / "Cargo.toml").write_text(
            '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2024"\n'
        )
        (folder / "Cargo.toml").write_text('[workspace]\nresolver = "3"\nmembers = ["rust/*"]\n')
        (folder / "kernels").mkdir()
        shutil.copy(ROOT / "Makefile", folder)
        (folder / "tools").mkdir()
        for tool in ("in_clone", "install_extension"):
            shutil.copy(ROOT / "tools" / tool, folder / "tools")
        # All clones are of the same day, long before anything is built.
        for path in folder.rglob("*"):
            os.utime(path, LONG_AGO)

        # Not the variables of a `make` that runs these tests.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
        environment["CARGO_TARGET_DIR"] = str(tmp_path / "target")

        def run(*command: str) -> str:
            return subprocess.run(
                command,
                cwd=folder,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
                timeout=120,
            ).stdout

        return folder, run

    return make


def test_make_help_lists_the_commands_and_changes_nothing(clone, tmp_path):
    _, run = clone("one", "1")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "clone").write_text("/another/clone\n")
    before = snapshot(tmp_path)
    assert "\ndemo " in "\n" + run("make", "help")
    assert snapshot(tmp_path) == before


def test_clones_that_share_a_target_folder_build_their_own_sources(clone):
    asked = ("tools/in_clone", "cargo", "run", "-q")
    _, one = clone("one", "I am one")
    _, two = clone("two", "I am two")
    for _ in range(2):
        assert one(*asked) == "I am one\n"
        assert two(*asked) == "I am two\n"


def test_a_clone_alone_keeps_the_times_of_its_sources(clone):
    folder, run = clone("one", "1")
    before = snapshot(folder / "rust")
    for _ in range(2):
        assert run("tools/in_clone", "echo", "built") == "built\n"
    assert snapshot(folder / "rust") == before


def test_the_extension_is_built_again_only_after_a_change(clone):
    folder, run = clone("one", "1")
    maturin = folder / ".venv" / "bin" / "maturin"
    maturin.parent.mkdir(parents=True)
    maturin.write_text('#!/bin/sh\necho "maturin $1 for $VIRTUAL_ENV"\n')
    maturin.chmod(0o755)
    for file in ("Cargo.lock", "pyproject.toml", ".venv/runtime.stamp"):
        (folder / file).touch()
        os.utime(folder / file, LONG_AGO)
    built = f"maturin develop for {folder}/.venv\nBuilt and installed ingle in 0 min "
    install = ("tools/install_extension", ".venv")
    source = folder / "rust" / "app" / "src" / "other.rs"
    # The last change is that a file goes.
    for change in (lambda: None, source.touch, source.unlink):
        change()
        assert built in run(*install)
        assert run(*install) == ""
        # Clocks of file systems are coarse: what comes next must be later.
        stamp = folder / ".venv" / "ingle.stamp"
        os.utime(stamp, (stamp.stat().st_mtime - 100,) * 2)
        os.utime(source.parent, LONG_AGO)
        if source.exists():
            os.utime(source, LONG_AGO)
    assert run(*install) == ""


def test_a_build_that_fails_is_tried_again(clone):
    folder, run = clone("one", "1")
    maturin = folder / ".venv" / "bin" / "maturin"
    maturin.parent.mkdir(parents=True)
    maturin.write_text("#!/bin/sh\nexit 3\n")
    maturin.chmod(0o755)
    for file in ("Cargo.lock", "pyproject.toml", ".venv/runtime.stamp"):
        (folder / file).touch()
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            run("tools/install_extension", ".venv")
