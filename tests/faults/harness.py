"""Loads and runs a model while one call of the device fails, in a process for each case.

Reads cases from standard input, one JSON list a line: when (load or step), the call, its number and
its error; writes what came of each as JSON. See test_each_call.py.

    python -m faults.harness LIBRARY FOLDER
"""

import ctypes
import gc
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from faults.device import Table

MODEL = Path(__file__).parents[1] / "golden" / "models" / "llama-tied-bf16"
ANY = r"(.|\n)*"
"""A grammar that every token fits."""
LIMIT_S = 20
"""A case that takes longer hangs; SIGALRM then ends its process."""


def main(library, folder):
    table = Table(Path(folder) / "table")
    os.environ["INGLE_FAULT_TABLE"] = str(table.path)
    # The engine's own dlopen of libcuda.so.1 then finds it.
    ctypes.CDLL(library)
    import ingle  # Without a thread, so that each case can be a fork.

    for line in sys.stdin:
        table.clear()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(LIMIT_S)
            found = run(ingle, table, library, folder, json.loads(line))
            os.write(write, json.dumps(found).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            text = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(json.dumps({"status": status} | json.loads(text or b"{}")) + "\n")
        sys.stdout.flush()


def run(ingle, table, library, folder, case):
    """What one case ends with."""
    when, *failing = case
    # Kernels are compiled and products measured where a load must fail, and only there.
    cache = tempfile.mkdtemp(dir=folder) if when == "load" else os.path.join(folder, "cache")
    found = {"load": None, "first": None, "second": None}
    if when == "load":
        table.fail(*failing)
    engine, found["load"] = outcome(
        lambda: ingle.Engine(
            str(MODEL),
            device="cuda",
            cache_dir=cache,
            nvrtc_library=library,
            cublaslt_library=library,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            max_model_len=128,
        )
    )
    found["loaded"] = table.calls()
    if engine is not None:
        engine.core.seal_device()
        if when == "step":
            found["loaded"] = table.calls()
            table.fail(*failing)
        _, found["first"] = outcome(lambda: steps(ingle, engine))
        found["calls"] = table.calls()
        _, found["second"] = outcome(lambda: steps(ingle, engine))
        engine.close()
        del engine
    gc.collect()
    found["alive"] = table.alive()
    found["failed"] = table.has_failed()
    deadline = time.monotonic() + 2
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    found["threads"] = len(os.listdir("/proc/self/task"))
    return found


def outcome(act):
    """What `act` gives, and the error that it ends with: its class and text."""
    try:
        return act(), None
    except Exception as error:  # noqa: BLE001 # What it is, the test judges.
        return None, [type(error).__name__, str(error)]


def steps(ingle, engine):
    """Steps of all kinds: prompt and decode, log-probs of both, masks that come late."""
    plain = {"max_tokens": 3, "ignore_eos": True}
    for params in (
        plain,
        plain | {"echo": True, "logprobs": 2},
        {"guided_regex": ANY, "max_tokens": 3},
    ):
        engine.generate("The quick brown fox", ingle.SamplingParams(**params))


if __name__ == "__main__":
    main(*sys.argv[1:])
