"""Checks the image of deploy/Containerfile without a builder: the wheel in a bare Debian.

Makes a minimal Debian with debootstrap, installs the wheel there in a venv, and starts a worker as
another user on a read-only root. It must answer and end well. Needs root, debootstrap and a Debian
mirror; says so and ends with 77 where one is missing.

Run: sudo python tools/check_image.py dist/ingle-*.whl [--work FOLDER] [--keep]
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

MODEL = Path(__file__).parents[1] / "tests/golden/models/llama-tied-bf16"
SUITE, PYTHON = "bookworm", "3.11"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3,python3-venv,ca-certificates"
USER = "65532:65532"
LIMIT_S = 120.0
SKIPPED = 77
START = """
set -e
mount --bind "$0" "$0"
mount -o remount,bind,ro "$0"
mount -t proc proc "$0/proc"
mount -t tmpfs tmpfs "$0/tmp"
exec chroot --userspec="$1" "$0" /usr/bin/env -i PATH=/opt/ingle/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 ingle serve /models/tiny --device cpu --port 0
"""
"""In a mount namespace of its own: nothing of it is left behind."""


def main() -> int:
    """0 if the worker answered."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--work", type=Path, help="folder for the Debian; default: a new one")
    parser.add_argument("--keep", action="store_true", help="leave the Debian for the next run")
    options = parser.parse_args()
    lack = missing()
    if lack is not None:
        say(f"skipped: {lack}")
        return SKIPPED
    root = options.work or Path(tempfile.mkdtemp(prefix="ingle-image-"))
    # Another user must find its way from there: mkdtemp lets only its own.
    root.mkdir(exist_ok=True)
    root.chmod(0o755)
    try:
        install(root, options.wheel)
        return check(root)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)


def missing() -> str | None:
    """What this machine lacks."""
    if os.geteuid() != 0:
        return "needs root for chroot"
    tools = ("debootstrap", "chroot", "unshare", "mount")
    return next((f"needs {tool}" for tool in tools if shutil.which(tool) is None), None)


def install(root: Path, wheel: Path) -> None:
    """A Debian without anything but Python, then the wheel and what it asks for."""
    if not (root / "usr/bin/python3").exists():
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root), MIRROR)
    wheels = root / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    run(
        *(sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:"),
        *("--python-version", PYTHON, "-d", str(wheels), str(wheel)),
    )
    shutil.rmtree(root / "opt/ingle", ignore_errors=True)
    # Settings of this machine's pip mean other folders there.
    inside = ("chroot", str(root), "/usr/bin/env", "-i", "PATH=/usr/bin:/bin")
    run(*inside, "python3", "-m", "venv", "/opt/ingle")
    pip = ("/opt/ingle/bin/pip", "install", "-q", "--no-index", "--find-links", "/wheels", "ingle")
    run(*inside, *pip)
    shutil.copytree(MODEL, root / "models/tiny", dirs_exist_ok=True)


def check(root: Path) -> int:
    """Starts a worker, asks it, ends it."""
    command = ["unshare", "--mount", "sh", "-c", START, str(root), USER]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        summary = read_summary(worker)
        say(summary)
        found = re.search(r"^address +(http://\S+)", summary, re.M)
        if found is None:
            say("the worker did not start")
            return 1
        body = json.dumps({"prompt": "a b", "max_tokens": 4}).encode()
        headers = {"Content-Type": "application/json"}
        url = found[1].rstrip(",") + "/v1/completions"
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:  # Our own worker.
            say(answer.read().decode())
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(LIMIT_S)
        say(f"ended with {code}")
        return code
    finally:
        worker.kill()
        worker.wait()


def read_summary(worker: "subprocess.Popen[str]") -> str:
    """What the worker says until it is ready."""
    lines: list[str] = []
    deadline = time.monotonic() + LIMIT_S
    if worker.stdout is None:
        return ""
    for line in worker.stdout:
        lines.append(line)
        if line.startswith("address") or time.monotonic() > deadline:
            break
    return "".join(lines)


def run(*command: str) -> None:
    """Errors: CalledProcessError."""
    say(" ".join(command))
    subprocess.run(command, check=True)


def say(text: str) -> None:
    """For people."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
