import json

import pytest

from ingle.cli import main
from ingle.errors import ConfigError
from ingle.plan import Load, arrivals_of

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:56.6805900,12,3
"""


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    return path


def test_times_of_the_public_dataset_are_read(trace):
    arrivals = arrivals_of(Load(trace=trace))
    assert [round(at, 6) for at, *_ in arrivals] == [0, 4.314579, 10]
    assert [tuple(lengths) for _, *lengths in arrivals] == [(374, 44), (396, 109), (12, 3)]
    assert len(arrivals_of(Load(trace=trace, limit=2))) == 2


def test_a_trace_is_scaled_to_a_rate_and_copied(trace):
    fast = arrivals_of(Load(trace=trace, rate=30))
    assert fast[-1][0] == pytest.approx(0.1)
    several = arrivals_of(Load(trace=trace, copies=40, rate=12))
    assert len(several) == 120
    assert several == sorted(several)
    assert several[-1][0] == pytest.approx(10, rel=0.05)
    assert several == arrivals_of(Load(trace=trace, copies=40, rate=12)), "the seed repeats it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t,a,b\n1,2\n", "line 2: must be time, prompt tokens, answer tokens"),
        ("t,a,b\nyesterday,2,3\n", "line 2: must be time"),
        ("t,a,b\n", "no requests"),
    ],
)
def test_a_bad_trace_is_named(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        arrivals_of(Load(trace=path))
    with pytest.raises(ConfigError, match="cannot read"):
        arrivals_of(Load(trace=tmp_path / "other.csv"))


def test_the_command_says_how_many_workers_an_objective_takes(trace, capsys):
    scaled = [f"--trace={trace}", "--copies=500", "--rate=60"]
    assert main(["plan", *scaled, "--slo-ttft-ms=200", "--slo-tpot-ms=20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workers"] >= 1
    assert found["report"]["attained"] >= 0.99
    assert main(["plan", *scaled, "--workers=3"]) == 0
    assert capsys.readouterr().out.startswith("workers      3 (llama-3.1-8b-bf16-h200)\n")
    assert main(["plan", *scaled]) == 2
    assert "give a number, or an objective" in capsys.readouterr().err
