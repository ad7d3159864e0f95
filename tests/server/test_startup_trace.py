"""`--startup-trace`: what the start consisted of, by a locked-down server."""

import json
import os
import stat
import subprocess
import sys

import pytest

from ingle.errors import ConfigError
from ingle.server.startup_trace import StartupTrace
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


def test_the_trace_is_a_regular_file_that_only_its_owner_may_write(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text("old " * 10_000)
    timeline = StartupTrace(file)
    timeline.write()
    assert json.loads(file.read_text())["displayTimeUnit"] == "ms", "nothing old is left behind it"
    fresh = tmp_path / "fresh.json"
    StartupTrace(fresh).write()
    assert stat.S_IMODE(fresh.stat().st_mode) & 0o133 == 0


def test_a_trace_that_is_a_pipe_a_link_a_device_or_a_folder_is_refused_at_once(tmp_path):
    pipe, link, other = tmp_path / "pipe", tmp_path / "link", tmp_path / "other"
    os.mkfifo(pipe)
    other.write_text("mine")
    link.symlink_to(other)
    said = {
        pipe: "it is no regular file",
        link: "it is a link",
        "/dev/null": "it is no regular file",
        tmp_path: "Is a directory",
    }
    for place, why in said.items():
        with pytest.raises(ConfigError, match=f"startup_trace: cannot write {place}: {why}"):
            StartupTrace(place)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ConfigError, match="it is no regular file"):
        StartupTrace(pipe)
    os.close(reader)
    assert other.read_text() == "mine"
