"""The `ingle` command as a process."""

import json
import shutil
import subprocess
import sys

import pytest

from server.worker import TINY


def ingle(*arguments, text=None):
    return subprocess.run(
        [sys.executable, "-m", "ingle", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_generate_prints_the_same_text_twice():
    arguments = ("generate", TINY, "The quick", "--device", "sim", "--sim-speed", "inf")
    done = ingle(*arguments, "--max-tokens", 20)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 10
    assert ingle(*arguments, "--max-tokens", 20).stdout == done.stdout


def test_chat_answers_until_its_input_ends():
    done = ingle("chat", TINY, "--device", "cpu", "--max-tokens", 5, text="Hello\n/reset\nAgain\n")
    assert done.returncode == 0, done.stderr
    assert "Ctrl-D" in done.stdout


def test_doctor_reports_the_machine_and_its_devices():
    done = ingle("doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report) == ["version", "cpu", "memory", "devices", "kernel", "hardening"]
    assert report["memory"]["available_bytes"] > 1 << 20
    devices = report["devices"]
    assert devices["sim"] == {"usable": True}
    assert devices["cpu"]["usable"]
    assert "--tensor-parallel-size" in devices["cpu"]["ranks"]
    cuda = devices["cuda"]
    assert cuda["ranks"]["value"] == "1"
    assert "--tensor-parallel-size" in cuda["ranks"]["cost"]
    cards = [name for name in cuda if name.startswith("cuda:")]
    assert len(cards) == cuda["device_count"]
    assert cuda["usable"] == any(cuda[name]["usable"] for name in cards)
    for name in ("driver", "nvrtc", "prebuilt_kernels"):
        finding = cuda[name]
        assert not isinstance(finding, dict) or (finding["missing"] and finding["cost"]), name
    if not cards:
        assert cuda["driver"]["cost"] == "no GPU: the cpu device is used"
    assert " / " in str(report["kernel"]["locked_memory"])
    assert list(report["hardening"]) == ["landlock", "namespaces", "seccomp", "no_new_code", "user"]
    for name, finding in report["hardening"].items():
        assert not isinstance(finding, dict) or (finding["missing"] and finding["cost"]), name


def test_doctor_in_words():
    done = ingle("doctor")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for heading in ("cpu", "devices", "kernel", "memory", "hardening"):
        assert heading in lines
    assert any(line.startswith("    prebuilt kernels") for line in lines)
    costs = [line for line in lines if line.strip().startswith("what this costs: ")]
    assert costs == [line for line in costs if line.split("costs: ")[1]]
    assert len(costs) >= sum("missing: " in line for line in lines)


@pytest.mark.parametrize("command", ["serve", "generate"])
def test_missing_model_is_one_line_and_code_3(command, tmp_path):
    rest = ["x"] if command == "generate" else ["--port", 0]
    done = ingle(command, tmp_path / "nowhere", *rest)
    assert done.returncode == 3
    assert done.stderr.startswith("ingle: ")
    assert done.stderr.count("\n") == 1
    assert "nowhere" in done.stderr


@pytest.mark.parametrize(
    "template",
    ["{% if 1 %}" * 20_000, "x" * 300_000, "{{"],
    ids=["blocks", "long", "syntax"],
)
def test_hostile_template_is_one_line_and_code_3(template, tmp_path):
    folder = tmp_path / "hostile"
    shutil.copytree(TINY, folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    done = ingle("serve", folder, "--port", 0, "--device", "cpu")
    assert done.returncode == 3
    assert done.stderr.startswith("ingle: ")
    assert done.stderr.count("\n") == 1
    assert "hostile: chat template: line 1: " in done.stderr
    assert len(done.stderr) < 400


def test_refused_request_is_code_1():
    done = ingle("generate", TINY, "x", "--device", "cpu", "--temperature", "-1")
    assert done.returncode == 1
    assert "temperature" in done.stderr


def test_taken_port_is_code_1_before_the_model_is_loaded(cpu):
    done = ingle("serve", "/nowhere/at/all", "--port", cpu.address[1])
    assert done.returncode == 1
    assert f"port {cpu.address[1]}" in done.stderr


@pytest.mark.parametrize("flags", [[], ["--chat", "--rate", "200", "--new-connections"]])
def test_bench_reports_every_request_and_draws_a_plot(sim, flags, tmp_path):
    plot = tmp_path / "run.svg"
    load = ["--requests", 12, "--concurrency", 3, "--lengths", "fixed:20:7", "--processes", 2]
    pid = sim.process.pid
    done = ingle("bench", sim.url, *load, *flags, "--server-pid", pid, "--json", "--plot", plot)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["requests_ok"], report["requests_failed"]) == (12, 0)
    assert report["output_tokens"] == 12 * 7
    assert report["short_outputs"] == 0
    assert report["cpu_us_per_token"] is not None
    assert plot.read_text().startswith("<svg")


def test_bench_says_what_failed(sim):
    load = ("--requests", 3, "--concurrency", 2, "--lengths", "fixed:5:5", "--processes", 1)
    done = ingle("bench", sim.url, *load, "--model", "other")
    assert done.returncode == 1
    assert "3 FAILED: HTTP 404" in done.stdout
    for flags in (["--lengths", "x"], ["--requests", 0], ["--body", "[]"], ["--server-pid", -1]):
        done = ingle("bench", sim.url, *flags)
        assert done.returncode == 2
        assert done.stderr.startswith("ingle: ")
