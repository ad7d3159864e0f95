"""`--startup-trace`: what the start consisted of, by a locked-down server."""

import json
import subprocess
import sys

from server.worker import TINY, Worker


def test_the_trace_has_each_phase_on_its_thread(tmp_path):
    file = tmp_path / "trace.json"
    with Worker("--device", "cpu", "--startup-trace", str(file)) as worker:
        events = json.loads(file.read_text())["traceEvents"]
        assert " s after the process began\n" in worker.summary
    threads = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    phases = {event["name"]: event for event in events if event["ph"] == "X"}
    first = phases["interpreter and imports"]
    assert first["ts"] == 0
    where = {name: threads[event["tid"]] for name, event in phases.items()}
    model = TINY.name
    assert where[f"{model}: device"] == where["server made"] == "main"
    assert where["imports of the server"] == "ingle-import"
    assert where[f"{model}: tokenizer and templates"] == "ingle-tokenizer"
    order = ["lock-down, first half", f"{model}: model files", f"{model}: device", "server made"]
    ends = [first["dur"]] + [phases[name]["ts"] + phases[name]["dur"] for name in order]
    assert ends == sorted(ends)
    assert all(phases[name]["ts"] >= end for name, end in zip(order, ends, strict=False))


def test_a_trace_that_cannot_be_written_is_a_usage_error(tmp_path):
    command = [sys.executable, "-m", "ingle", "serve", str(TINY), "--device", "cpu", "--port", "0"]
    file = tmp_path / "missing" / "trace.json"
    ended = subprocess.run([*command, "--startup-trace", str(file)], capture_output=True, text=True)
    assert ended.returncode == 2
    assert f"cannot write {file}: No such file or directory" in ended.stderr
