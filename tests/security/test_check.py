"""`ingle security check` and `ingle security trace`, as an operator runs them."""

import json
import subprocess
import sys

from security.test_lockdown import LOCKED_SCRIPT


def run(*arguments):
    command = [sys.executable, "-m", "ingle", "security", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_every_probe_is_refused_and_its_control_is_not():
    done = run("check", "--json")
    report = json.loads(done.stdout)
    surprises = [probe for probe in report["probes"] if probe["verdict"] == "failed"]
    assert done.returncode == 0, surprises
    assert surprises == []
    assert report["passed"] >= 60
    assert report["passed"] + report["not_probed"] == len(report["probes"])
    for probe in report["probes"]:
        if probe["verdict"] == "passed":
            assert probe["found"] in probe["expected"]
            assert probe["control"] not in {"", probe["found"]}
        else:
            assert probe["why"]


def test_a_traced_process_says_what_the_filter_lacks_and_goes_on():
    script = LOCKED_SCRIPT.replace('device="cpu")', 'device="cpu", trace=True)', 1)
    command = [sys.executable, "-c", script, "open", "--locked"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "trace: python" in done.stderr
    assert ": openat" in done.stderr
