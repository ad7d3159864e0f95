"""compute-sanitizer over sanitize.py, beside whatever else runs: each tool is a process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TOOLKITS = ("/usr/local/cuda/bin", os.path.join(os.environ.get("CUDA_HOME", "/nowhere"), "bin"))
FOUND = 9  # the exit code that compute-sanitizer gets for findings


@dataclass
class Run:
    """One tool at work."""

    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        """What it wrote."""
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        """Ends it and the program under it, if they have not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def program() -> str | None:
    """compute-sanitizer's path: on PATH, or in a toolkit."""
    places = os.pathsep.join([os.environ.get("PATH", ""), *TOOLKITS])
    return shutil.which("compute-sanitizer", path=places)


def start(tools: Iterable[str], folder: Path) -> dict[str, Run]:
    """Starts the tools; none where compute-sanitizer is not found."""
    found = program()
    return {tool: _start(found, tool, folder / f"{tool}.log") for tool in tools if found}


def _start(found: str, tool: str, log: Path) -> Run:
    command = [found, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable]
    environment = dict(os.environ)
    if tool == "memcheck":
        # Else buffers are parts of large allocations, and a step out of one stays unseen.
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, str(HERE / "sanitize.py")],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return Run(process, log)
