"""Structured output: what is refused, and where an answer ends. Each request is made plain and
streamed.
"""

import concurrent.futures
import json
import re
import time

import pytest

from server.reciter import Recital
from server.test_structured import FORMAT, HERMES, TOOLS, WHOLE, assert_fits
from server.twice import ASKED, PATHS, both, refused_bytes_twice, refused_twice
from server.worker import Worker, joined, whole

SAMPLED = {"temperature": 1, "max_tokens": WHOLE}


@pytest.fixture(params=PATHS)
def ask(request, cpu):
    return getattr(cpu, request.param)


@pytest.fixture
def refused(ask, cpu):
    """The error of a refusal on the endpoint of `ask`."""
    path = PATHS[ask.__name__]

    def refuse(**fields):
        began = time.monotonic()
        error = refused_twice(cpu, path, **ASKED[path], **fields)
        assert time.monotonic() - began < 10
        return error

    return refuse


def texts(answer):
    return [text for text, _ in whole(answer).values()]


def test_schemas_that_cannot_be_enforced_are_refused(refused):
    for schema in (
        {"type": "string", "not": {"const": "x"}},
        {"type": "array", "uniqueItems": True},
        {"$ref": "http://127.0.0.1:1/x"},
        {"type": "object", "propertyNames": {"format": "email"}},
        {"if": {"type": "string"}, "then": {"minLength": 3}},
    ):
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        assert refused(guided_json=schema)["param"] == "guided_json"
        assert refused(response_format=form)["param"] == "response_format"
        assert refused(structured_outputs={"json": schema})["param"] == "structured_outputs"
    assert refused(response_format={"type": "xml"})["param"].startswith("response_format")
    assert refused(response_format={"type": "json_schema"})["param"].startswith("response_format")


BAD_REGEXES = ["a**b(", "(", "a)", "(?<=a)b", "(?=a)", "[", "a{3,1}", r"(a)\1", "", "a" * 20_000]


@pytest.mark.parametrize("regex", BAD_REGEXES)
def test_bad_regexes_are_refused(cpu, refused, regex):
    stream = cpu.open_stream(max_tokens=2000)
    with stream:
        assert refused(guided_regex=regex)["param"] == "guided_regex"
        assert refused(structured_outputs={"regex": regex})["param"] == "structured_outputs"
        pattern = {"type": "string", "pattern": regex or 5}
        assert refused(guided_json=pattern)["param"] == "guided_json"
    cpu.wait_until_idle()


@pytest.mark.parametrize("regex", ["(a*)*b", "((a{1,50}){1,50}){1,50}", "(.*a){40}", "(a|aa)+$"])
def test_nested_quantifiers_cost_nothing(ask, regex):
    began = time.monotonic()
    both(ask, guided_regex=regex, max_tokens=3)
    assert time.monotonic() - began < 10


def nested(depth):
    return '{"type":"array","items":' * depth + "{}" + "}" * depth


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"type": "strng"},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "array", "minItems": 10**9},
        {"type": "object", "properties": {f"p{i}": {} for i in range(2000)}},
    ],
)
def test_bad_schemas_are_refused(refused, schema):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert refused(response_format=form)["param"] == "response_format"
    assert refused(guided_json=schema)["param"] == "guided_json"


def test_deep_schemas_are_served_up_to_a_bound(ask):
    schema = json.loads(nested(40))
    [text] = texts(both(ask, guided_json=schema, max_tokens=20, temperature=1, seed=1))
    assert text.startswith("[")


@pytest.mark.parametrize("depth", [120, 2000, 100_000])
@pytest.mark.parametrize("path", ASKED)
def test_schemas_that_are_too_deep_are_refused(cpu, path, depth):
    asked = json.dumps(ASKED[path] | {"guided_json": "here"}).encode()
    for schema in (nested(depth), json.dumps(nested(depth))):
        body = asked.replace(b'"here"', schema.encode())
        assert refused_bytes_twice(cpu, path, body)["param"] == "guided_json"


@pytest.mark.parametrize(
    "lark", ["start: missing", 'begin: "x"', "", "start: " + "(" * 5000, "start: @x", "%json {"]
)
def test_bad_grammars_are_refused(refused, lark):
    assert refused(guided_grammar=lark)["param"] == "guided_grammar"


@pytest.mark.parametrize("stream", [False, True])
def test_refused_schemas_disturb_no_other_request(ask, cpu, refused, stream):
    steady = {"max_tokens": 300, "ignore_eos": True}
    reference = whole(both(ask, **steady))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        others = [pool.submit(ask, **steady, stream=stream) for _ in range(4)]
        for _ in range(5):
            refused(guided_json={"type": 5})
        both(ask, guided_choice=["a", "b"])
    for other in others:
        assert (joined if stream else whole)(other.result()) == reference


def test_large_schemas_are_served(ask):
    schema = {"type": "object", "properties": {f"p{i}": {"type": "boolean"} for i in range(1000)}}
    for closed in (True, False):
        schema["additionalProperties"] = not closed
        [text] = texts(both(ask, guided_json=schema, max_tokens=12, temperature=1, seed=2))
        assert text.startswith("{")


@pytest.fixture(scope="module")
def hermes(tmp_path_factory):
    """The tiny model with a template that has a place for tools."""
    path = tmp_path_factory.mktemp("template") / "hermes.jinja"
    path.write_text(HERMES)
    with Worker("--device", "cpu", "--chat-template", path) as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


@pytest.mark.parametrize(
    ("parameters", "choice"),
    [
        ({"type": 5}, "auto"),
        ({"type": "strng"}, "auto"),
        ({"properties": {"a": {"type": "string", "pattern": "a**("}}}, "auto"),
        ({"properties": {"a": {"type": "string", "pattern": "a**("}}}, "required"),
        ({"type": "object", "not": {}}, "required"),
    ],
)
def test_bad_tool_schemas_are_refused(hermes, parameters, choice):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    error = refused_twice(
        hermes,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "x"}],
        tools=[tool],
        tool_choice=choice,
    )
    assert error["param"] == "tools"
    assert "f" in error["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "news"}}])
@pytest.mark.parametrize("seed", range(3))
def test_forced_calls_are_streamed_as_in_the_plain_answer(hermes, choice, seed):
    fields = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "n": 2}
    for parallel in (False, True):
        answer = both(hermes.chat, **SAMPLED, **fields, parallel_tool_calls=parallel)
        for each in answer["choices"]:
            assert each["finish_reason"] in ("tool_calls", "length" if parallel else "tool_calls")
            function = each["message"]["tool_calls"][0]["function"]
            assert set(json.loads(function["arguments"])) == {"city", "days"}


@pytest.fixture(scope="module")
def spacious(tmp_path_factory):
    """A model that likes white space best, then to ramble on; the end of text least."""
    recital = Recital()
    recital.add("\1", 'Sure! "}')
    after = [b" ", b"\n", b"\t", b"\r", b"{", b"}", b"\1", b"[", b'"', b":", b"a", b"b", b'"}']
    for before in after:
        for space, logit in ((b"\n", 30), (b" ", 29), (b"\t", 28), (b"\r", 27)):
            recital.prefer(before, space, logit)
        # One token for the last two characters, and one that goes beyond the end.
        recital.prefer(before, b'"}', 20)
        recital.prefer(before, b'"}x', 24)
        recital.prefer(before, b"x", 23)
        recital.prefer(before, 1, -30)
    folder = recital.save(tmp_path_factory.mktemp("spacious"))
    with Worker("--device", "cpu", model=folder) as worker:
        worker.recital = recital
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        FORMAT,
    ],
    ids=["object", "any schema", "schema"],
)
def test_white_space_in_json_is_bounded(spacious, name, form):
    answer = both(getattr(spacious, name), "x\1", response_format=form, max_tokens=400)
    [text] = texts(answer)
    assert text.startswith("{")
    outside = re.sub(r'"(?:[^"\\]|\\.)*"?', '""', text)
    assert max(map(len, re.findall(r"\s+", outside)), default=0) <= 21
    assert len(re.findall(r"\S", text)) > 5, "and the answer goes on"


@pytest.mark.parametrize("name", PATHS)
def test_only_the_end_follows_the_end_of_a_grammar(spacious, name):
    fields = {"guided_regex": r'\{"a":"b"\}', "max_tokens": 50, "return_token_ids": True}
    [choice] = both(getattr(spacious, name), "x\1", **fields)["choices"]
    assert choice["finish_reason"] == "stop"
    assert whole({"choices": [choice]})[0][0] == '{"a":"b"}'
    recital = spacious.recital
    last = recital.id(b'"}')
    assert last in choice["token_ids"], "the token of both characters closes it"
    rest = choice["token_ids"][choice["token_ids"].index(last) + 1 :]
    assert rest in ([], [1])
    # As the only choice too, and with a schema.
    assert texts(both(getattr(spacious, name), "x\1", guided_choice=['a"}'])) == ['a"}']
    schema = {"type": "object", "properties": {"a": {"const": "b/\\"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    [text] = texts(both(getattr(spacious, name), "x\1", guided_json=schema, max_tokens=300))
    assert json.loads(text) == {"a": "b/\\"}


@pytest.mark.parametrize("seed", range(3))
def test_rows_without_a_token_are_banned_under_a_grammar(ask, seed):
    # The model has 512 rows, the tokenizer 388 entries.
    for form in ({"response_format": {"type": "json_object"}}, {"guided_regex": "(?s:.){1,60}"}):
        fields = {"temperature": 2, "seed": seed, "max_tokens": 60, "return_token_ids": True}
        [choice] = both(ask, **fields, **form)["choices"]
        assert max(choice["token_ids"]) < 388


def test_each_prompt_and_choice_has_its_own_place_in_the_grammar(ask, cpu):
    fields = SAMPLED | {"response_format": FORMAT, "seed": 5, "n": 2, "logit_bias": {"40": 1}}
    one = both(ask, **fields)
    assert len(texts(one)) == 2
    for text in texts(one):
        assert_fits(text)
    if ask == cpu.chat:
        return
    several = texts(both(ask, ["The quick", "two", "The quick"], **fields))
    assert several[:2] == several[4:] == texts(one)
    for text in several:
        assert_fits(text)
    objects = fields | {"response_format": {"type": "json_object"}, "max_tokens": 40}
    assert texts(both(ask, ["The quick", "two"], **objects))[:2] == texts(both(ask, **objects))


def test_limits_stops_and_logprobs_leave_structured_text_as_it_is(ask):
    fields = SAMPLED | {"response_format": FORMAT, "seed": 5}
    [text] = texts(both(ask, **fields))
    assert_fits(text)
    for limit in (1, 3, 10):
        cut = both(ask, **fields | {"max_tokens": limit})
        assert cut["choices"][0]["finish_reason"] == "length"
        assert cut["usage"]["completion_tokens"] == limit
        assert text.startswith(texts(cut)[0])
    for stop in ('"age', "{", text[3:6], text[-1:]):
        stopped = both(ask, **fields, stop=[stop])
        assert stopped["choices"][0]["finish_reason"] == "stop"
        assert texts(stopped) == [text[: text.index(stop)]]
    for logged in ({"logprobs": 2}, {"logprobs": True, "top_logprobs": 2}):
        if (logged["logprobs"] is True) != ("chat" in ask.__name__):
            continue
        answer = both(ask, **fields, **logged)
        assert texts(answer) == [text]
        found = answer["choices"][0]["logprobs"]
        entries = found["content"] if "content" in found else found["tokens"]
        assert len(entries) == answer["usage"]["completion_tokens"]
