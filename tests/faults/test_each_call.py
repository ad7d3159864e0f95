"""Each call of the GPU libraries fails once: an error or none, never a hang, a leak or a crash."""

import collections
import contextlib
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faults.device import COMPILER, ILLEGAL_ADDRESS, OUT_OF_MEMORY, build

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

MOST_PLACES = 40
"""Of a function that is called thousands of times while products are measured."""
ENDS = ("Destroy", "Free", "Release", "Unmap", "Unload")
"""In the names of calls that give something back."""
MAY_FAIL = (
    # Products are measured with what works; a step without a graph is launched kernel by kernel.
    *("cublasLtMatmul", "cublasLtMatmulPreferenceSetAttribute", "cuEventElapsedTime_v2"),
    *("cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphGetNodes"),
    *("cuGraphInstantiateWithFlags", "cuGraphUpload"),
    # Also made by the threads that record graphs, and while products are measured.
    *("cuCtxSetCurrent", "cuStreamCreate", "cuLaunchKernelEx", "cuEventRecord"),
    *("cuEventSynchronize", "cublasLtMatmulAlgoConfigGetAttribute"),
)
"""Calls whose failure need not end a load."""


COUNT_VARIES = ("cuStreamSynchronize", "cublasLtMatmul", "cuCtxSetCurrent", "cuMemGetInfo_v2")


class Harness:
    """A process of harness.py."""

    def __init__(self, library, folder):
        folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.harness", library, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[1],
        )

    def __call__(self, case):
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(20) == 0
        self._process.stdout.close()


@contextlib.contextmanager
def harnesses(tmp_path):
    library = build(tmp_path)
    with contextlib.ExitStack() as stack:
        count = range(len(os.sched_getaffinity(0)))
        yield [stack.enter_context(closing(library, tmp_path / str(number))) for number in count]


@contextlib.contextmanager
def closing(library, folder):
    harness = Harness(library, folder)
    try:
        yield harness
    finally:
        harness.close()


def counts(harness):
    """How often each function is called by a load, and by the steps after it."""
    found = harness(["load", "none", 1, 0])
    assert found["status"] == 0
    assert found["load"] is found["first"] is found["second"] is None, found
    assert found["alive"] == {}, found
    load = {name: count for name, count in found["loaded"].items() if name != "none"}
    both = collections.Counter(found["calls"])
    both.subtract(load)
    return load, {name: count for name, count in both.items() if count > 0}


def cases(harness, places):
    """Of each function the calls that `places` picks of so many."""
    load, steps = counts(harness)
    for name, count in load.items():
        for place in places(count):
            yield ["load", name, place, OUT_OF_MEMORY]
    for name, count in steps.items():
        for place in places(count):
            yield ["step", name, place, OUT_OF_MEMORY]
            if not name.startswith("cublas"):
                yield ["step", name, place, ILLEGAL_ADDRESS]


def fault_of(case, found):
    """What is wrong with the end of a case; None if nothing is."""
    when, name, _, code = case
    if found["status"] == 0 and not found["failed"]:
        # How often products are measured depends on the clock.
        return None if name in COUNT_VARIES else "was never made to fail"
    gives_back = any(word in name for word in ENDS)
    if found["status"] != 0:
        return "hangs" if found["status"] == -14 else "crashes"
    if found["threads"] != 1:
        return "leaves threads"
    if found["alive"] and not gives_back:
        return "leaks"
    errors = [found["load"], found["first"], found["second"]]
    if any(error and ("\n" in error[1] or not error[1]) for error in errors):
        return "has an error that is not one line"
    kinds = [error and error[0] for error in errors]
    if when == "load":
        # A load that goes on leaves an engine that works.
        allowed = [["ModelError", None, None]]
        if gives_back or name in MAY_FAIL:
            allowed.append([None, None, None])
    elif code == ILLEGAL_ADDRESS or name == "cuEventSynchronize":
        allowed = [[None, "FailedError", "FatalError"], [None, "FatalError", "FatalError"]]
    else:
        allowed = [[None, "FailedError", None]]
    return None if kinds in allowed else f"must end as one of {allowed}"


def run(tmp_path, places):
    with harnesses(tmp_path) as running:
        todo = list(cases(running[0], places))
        assert len({case[1] for case in todo}) > 50
        parts = [todo[start :: len(running)] for start in range(len(running))]
        with ThreadPoolExecutor(len(running)) as threads:
            ends = threads.map(lambda pair: list(map(*pair)), zip(running, parts, strict=True))
            found = [
                each for part in zip(parts, ends, strict=True) for each in zip(*part, strict=True)
            ]
    faults = [(case, fault_of(case, end), end) for case, end in found if fault_of(case, end)]
    for _, _, end in faults:
        end.pop("calls", None), end.pop("loaded", None)
    assert not faults, f"{len(faults)} of {len(found)}: {faults[:8]}"
    return len(found)


def test_one_call_of_each_function_fails(tmp_path):
    choose = random.Random(1)
    run(tmp_path, lambda count: [choose.randint(1, count)])


@pytest.mark.long
def test_each_call_fails_once(tmp_path):
    def places(count):
        if count <= MOST_PLACES:
            return range(1, count + 1)
        return sorted(
            {1, 2, count - 1, count, *random.Random(count).sample(range(1, count), MOST_PLACES)}
        )

    num_cases = run(tmp_path, places)
    print(f"{num_cases} cases")  # noqa: T201 # For the documents.
