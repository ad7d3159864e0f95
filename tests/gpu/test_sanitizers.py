"""compute-sanitizer over every kernel, through sanitize.py: memory, races, barriers."""

import subprocess

import pytest
from sanitizers import TOOLS

LIMIT_S = 240.0


@pytest.mark.sanitizer
@pytest.mark.parametrize("tool", TOOLS)
def test_sanitizer_finds_nothing(sanitizer_runs, tool):
    if tool not in sanitizer_runs:
        pytest.skip("compute-sanitizer is neither on PATH nor in a CUDA toolkit")
    run = sanitizer_runs[tool]
    try:
        code = run.process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{tool} has not ended: {run.text()[-4000:]}", pytrace=False)
    text = run.text()
    assert code == 0, f"exit code {code}: {text[-4000:]}"
    clean = ("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards")
    assert any(line in text for line in clean), text[-4000:]
