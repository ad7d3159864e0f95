"""On kernels that lack Landlock, or namespaces too: what stands in, and that the rest is named."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from server.worker import TINY, Worker

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
LESSER = Path(__file__).with_name("lesser_kernel.py")


class Lesser(Worker):
    """A server on a lesser kernel."""

    def __init__(self, without, *arguments, **options):
        self.without = without
        super().__init__(*arguments, **options)

    def command(self, model):
        return [sys.executable, str(LESSER), self.without, *super().command(model)]


def on_kernel(without, *arguments):
    command = [sys.executable, str(LESSER), without, sys.executable, "-m", "ingle", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def has_namespaces():
    """Whether this machine gives users namespaces, which stand in for Landlock."""
    report = json.loads(on_kernel("landlock", "doctor", "--json").stdout)
    return report["hardening"]["namespaces"] is True


def test_a_namespace_stands_in_for_landlock(has_namespaces):
    if not has_namespaces:
        pytest.skip("this machine gives users no namespaces")
    with Lesser("landlock", "--device", "cpu") as worker:
        assert worker.health()["hardening"]["on"]["files"] == "a namespace"
        assert worker.complete()["choices"][0]["finish_reason"] == "length"
        root = Path(f"/proc/{worker.process.pid}/root")
        assert {"usr", "proc"} <= {entry.name for entry in root.iterdir()}
        assert not (root / "home").exists()
        assert not (root / "etc/shadow").exists()
        assert worker.stop() == 0, worker.errors()
    done = on_kernel("landlock", "security", "check", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["failed"]) == (0, 0), report
    unproved = [each["name"] for each in report["probes"] if each["verdict"] == "not_probed"]
    assert "open the root" in unproved
    assert "read a file of another folder" not in unproved


def test_without_either_the_files_are_named_as_missing():
    without = "landlock,namespaces"
    with Lesser(without, "--device", "sim") as worker:
        assert "missing: files: Landlock is not active" in worker.summary
        assert "namespace" in worker.health()["hardening"]["missing"]["files"]
        assert worker.metric('ingle:hardening{layer="files"}') == 0
        assert worker.metric('ingle:hardening{layer="filter"}') == 1
        assert worker.stop() == 0
    flags = ("--port", "0", "--device", "sim", "--hardening", "strict")
    refused = on_kernel(without, "serve", str(TINY), *flags)
    assert refused.returncode == 4
    assert "files: Landlock is not active" in refused.stderr
    doctor = json.loads(on_kernel(without, "doctor", "--json").stdout)["hardening"]
    assert doctor["landlock"]["missing"]
    assert doctor["namespaces"]["missing"]
