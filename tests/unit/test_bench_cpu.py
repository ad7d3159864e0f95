"""`make bench`'s table and its options; what it measures is not run here."""

import importlib
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    yield importlib.import_module("bench_cpu")
    for name in ("bench_cpu", "ready"):
        sys.modules.pop(name, None)


def test_ratios_are_taken_within_a_round(bench):
    rounds = {
        "bf16": [
            {"prompt of 512": [100.0, 200.0, 100.0]},
            {"prompt of 512": [10.0, 30.0, 5.0]},
            {"prompt of 512": [40.0, 90.0, 20.0]},
        ]
    }
    lines = bench.table(["ingle", "ingle fast", "llama.cpp"], rounds)
    assert lines[0] == (
        "| format | tok/s | ingle | ingle fast | llama.cpp | ingle / llama.cpp "
        "| ingle fast / llama.cpp |"
    )
    assert lines[1].count("---") == 7
    assert lines[2:] == ["| bf16 | prompt of 512 | 40.0 | 90.0 | 20.0 | 2.00 | 4.50 |"]


def test_alone_there_are_no_ratios(bench):
    lines = bench.table(["ingle"], {"q8_0": [{"1 sequence": [7.0]}]})
    assert lines == ["| format | tok/s | ingle |", "|---|---|---|", "| q8_0 | 1 sequence | 7.0 |"]


def test_wrong_options_are_named(bench, monkeypatch, capsys):
    needed = ["--gguf", "x", "--cpu-bench", "x", "--ingle", "x", "--cache", "x"]
    for wrong, text in [
        (["--formats", "bf16,q9"], "'q9' is not one of bf16, q8_0, q4_1, q4_k"),
        (["--rounds", "0"], "must be a whole number from 1, not '0'"),
        (["--threads", "two"], "must be a whole number from 1, not 'two'"),
    ]:
        monkeypatch.setattr(sys, "argv", ["bench_cpu.py", *needed, *wrong])
        with pytest.raises(SystemExit):
            bench.main()
        assert text in capsys.readouterr().err
