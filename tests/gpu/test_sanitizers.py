"""compute-sanitizer over every kernel, through sanitize.py: memory, races, barriers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
LIMIT_S = 240.0
TOOLKITS = ("/usr/local/cuda/bin", os.path.join(os.environ.get("CUDA_HOME", "/nowhere"), "bin"))
FOUND = 9  # what compute-sanitizer is told to exit with


def sanitizer() -> str | None:
    """Its path: on PATH, or in a toolkit."""
    places = os.pathsep.join([os.environ.get("PATH", ""), *TOOLKITS])
    return shutil.which("compute-sanitizer", path=places)


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """Every tool that is asked for, beside the others: {tool: (process, path of its output)}."""
    program = sanitizer()
    if program is None:
        yield None
        return
    mine = [item for item in request.session.items if item.path == Path(__file__)]
    folder, started = tmp_path_factory.mktemp("sanitizers"), {}
    for tool in [item.callspec.params["tool"] for item in mine]:
        command = [program, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable]
        environment = dict(os.environ)
        if tool == "memcheck":
            # Else buffers are parts of large allocations, and a step out of one stays unseen.
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        log = folder / f"{tool}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, str(HERE / "sanitize.py")],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        started[tool] = (process, log)
    yield started
    for process, _ in started.values():
        process.kill()
        process.wait()


@pytest.mark.sanitizer
@pytest.mark.parametrize("tool", TOOLS)
def test_sanitizer_finds_nothing(runs, tool):
    if runs is None:
        pytest.skip("compute-sanitizer is neither on PATH nor in a CUDA toolkit")
    process, log = runs[tool]
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{tool} runs after {LIMIT_S:.0f} s: {tail(log)}", pytrace=False)
    text = log.read_text(errors="replace")
    assert code == 0, f"exit code {code}: {tail(log)}"
    assert "ERROR SUMMARY: 0 errors" in text or "RACECHECK SUMMARY: 0 hazards" in text, tail(log)


def tail(log: Path) -> str:
    """The end of a tool's output."""
    return log.read_text(errors="replace")[-4000:]
