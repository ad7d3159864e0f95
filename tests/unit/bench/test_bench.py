"""The load client: the work it makes, how it reads streams, the figures it derives."""

import json
import sys
import xml.etree.ElementTree as ET

import pytest
from aiohttp import web

from ingle.bench.client import Outcome, Target, drive
from ingle.bench.plot import svg
from ingle.bench.report import as_text, summarise
from ingle.bench.run import BenchOptions, run
from ingle.bench.workload import Request, WorkloadError, requests


def outcome(**fields):
    base = {
        "started_s": 1.0,
        "wanted_tokens": 3,
        "first_s": 1.5,
        "last_s": 2.5,
        "gaps_s": [0.4, 0.6],
        "num_prompt_tokens": 7,
        "num_output_tokens": 3,
    }
    return Outcome(**{**base, **fields})


def test_same_seed_gives_the_same_prompts():
    first, again = requests("sharegpt", 50, 3), requests("sharegpt", 50, 3)
    assert [r.prompt() for r in first] == [r.prompt() for r in again]
    assert first[0].prompt() != requests("sharegpt", 50, 4)[0].prompt()


def test_azure_conv_lengths_have_the_stated_means_and_limits():
    work = requests("azure-conv", 4000, 1)
    lengths = [(r.num_prompt_tokens, r.num_output_tokens) for r in work]
    tokens_in, tokens_out = (list(column) for column in zip(*lengths, strict=True))
    assert sum(tokens_in) / 4000 == pytest.approx(1155, rel=0.05)
    assert sum(tokens_out) / 4000 == pytest.approx(211, rel=0.05)
    assert (min(tokens_in), max(tokens_in)) == (
        pytest.approx(4, abs=8),
        pytest.approx(5100, rel=0.02),
    )
    assert (min(tokens_out), max(tokens_out)) == (
        pytest.approx(7, abs=2),
        pytest.approx(700, rel=0.02),
    )
    assert requests("azure-conv", 50, 3) == requests("azure-conv", 50, 3)


def test_sharegpt_lengths_have_the_stated_means():
    work = requests("sharegpt", 4000, 1)
    assert 190 < sum(r.num_prompt_tokens for r in work) / len(work) < 250
    assert 170 < sum(r.num_output_tokens for r in work) / len(work) < 230
    assert all(4 <= r.num_prompt_tokens <= 1024 for r in work)


def test_lengths_from_a_file(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("ContextTokens,GeneratedTokens\n10,20\n")
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in requests(f"csv:{file}", 2, 1)] == [
        (10, 20)
    ] * 2


@pytest.mark.parametrize(
    "lengths", ["", "fixed", "fixed:1", "fixed:0:3", "fixed:a:b", "csv:", "csv:/none"]
)
def test_bad_lengths_are_named(lengths):
    with pytest.raises(WorkloadError, match="--lengths"):
        requests(lengths, 1, 1)


def test_failed_requests_count_apart_in_the_summary():
    report = summarise([outcome(), outcome(error="HTTP 429: later")], 2.0, 0.1, 12.0)
    assert (report.requests_ok, report.requests_failed) == (1, 1)
    assert report.requests_per_s == 0.5
    assert report.total_tokens_per_s == 5.0
    assert report.ttft_ms.p50 == 500.0
    assert report.tpot_ms_mean == 500.0
    assert report.cpu_us_per_token == 10_000.0
    assert "FAILED: HTTP 429" in as_text(report)
    json.dumps(report.as_dict())


def test_picture_is_well_formed_also_when_nothing_ran():
    for outcomes in ([], [outcome()], [outcome(error="x")]):
        ET.fromstring(svg(outcomes, "<title> & more"))


def test_processes_follow_the_concurrency():
    assert BenchOptions("http://x", concurrency=1).num_processes() == 1
    assert BenchOptions("http://x", concurrency=200).num_processes() == 4
    assert BenchOptions("http://x", concurrency=4000).num_processes() == 8


EVENTS = (
    b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[{"te',
    b'xt":"b"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
)


async def serve(aiohttp_server, handler):
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    return await aiohttp_server(app)


def target(server, **fields):
    base = {
        "url": str(server.make_url("")).rstrip("/"),
        "model": "m",
        "api_key": "k",
        "chat": False,
        "timeout_s": 10.0,
        "new_connections": False,
        "extra_body": {},
    }
    return Target(**{**base, **fields})


async def test_a_stream_is_read_whatever_its_cuts(aiohttp_server):
    bodies = []

    async def handler(request):
        bodies.append((request.headers["Authorization"], await request.json()))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in EVENTS:
            await response.write(part)
        return response

    ended = []
    server = await serve(aiohttp_server, handler)
    work = [(0.0, Request(1, 4, 2)), (0.0, Request(2, 4, 2))]
    outcomes = await drive(target(server), work, 1, lambda: ended.append(1))
    assert [o.error for o in outcomes] == [None, None]
    assert [(o.num_prompt_tokens, o.num_output_tokens, len(o.gaps_s)) for o in outcomes] == [
        (5, 2, 1)
    ] * 2
    assert len(ended) == 2
    key, body = bodies[0]
    assert key == "Bearer k"
    assert body["max_tokens"] == 2
    assert body["ignore_eos"] is True


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, b"later", "HTTP 429: later"),
        (200, b'data: {"error":{"message":"lost"}}\n\n', '{"error"'),
        (200, b"data: [DONE]\n\n", "no token"),
    ],
)
async def test_failures_are_counted_not_raised(aiohttp_server, status, body, error):
    async def handler(_request):
        return web.Response(status=status, body=body)

    server = await serve(aiohttp_server, handler)
    outcomes = await drive(target(server), [(0.0, Request(1, 4, 2))], 1, lambda: None)
    assert error in outcomes[0].error


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("json_output", [True, False])
def test_progress_is_shown_on_a_terminal_whatever_the_output(
    monkeypatch, capsys, json_output, is_terminal
):
    shown = []

    def measure(options, progress=False):
        shown.append(progress)
        return summarise([outcome()], 2.0, 0.1, 12.0), [outcome()]

    monkeypatch.setitem(run.__globals__, "measure", measure)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    assert run(BenchOptions("http://x"), json_output, None) == 0
    assert shown == [is_terminal]
    out = capsys.readouterr().out
    assert not json_output or json.loads(out)["requests_ok"] == 1
