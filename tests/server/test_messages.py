"""POST /v1/messages, Anthropic's API: plain and streamed, tools, thinking, errors, count_tokens."""

import json

import pytest

from server.named_events import named_events
from server.test_structured import THINKING, TOOLS, WHOLE
from server.worker import TINY, Worker, http_request, wait_for

MODEL = "llama-tied-bf16"
PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
CLIENT_TOOLS = [
    {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
    for tool in TOOLS
]
ONE_CALL = {"type": "any", "disable_parallel_tool_use": True}
THINK = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def hermes(tmp_path_factory):
    """A model whose template has a place for tools, and reasons where `thinking` is set."""
    path = tmp_path_factory.mktemp("template") / "thinking.jinja"
    path.write_text(THINKING)
    with Worker("--device", "cpu", "--chat-template", path, model=TINY) as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


def user(content="Hello"):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def said(text):
    return {"type": "text", "text": text}


def call(name="weather", **fields):
    return {"type": "tool_use", "id": "call_1", "name": name, "input": fields}


def result(content, **fields):
    return {"type": "tool_result", "tool_use_id": "call_1", "content": content, **fields}


def ask(worker, messages=None, **fields):
    """A message that must succeed: the whole, or the events."""
    body = {"messages": messages or [user()], "max_tokens": 8, "temperature": 0} | fields
    reply = worker.post(PATH, body)
    assert reply.status == 200, reply.body
    return events_of(reply.body) if fields.get("stream") else reply.json


def events_of(body):
    """The events of a stream, after checking framing, names and order."""
    events = [event for event in named_events(body) if event["type"] != "ping"]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    return events


def whole_of(events):
    """The message that a client puts together; every block must begin, end and be next."""
    message, parts = events[0]["message"], None
    assert (message["content"], message["stop_reason"]) == ([], None)
    blocks = message["content"]
    for event in events[1:-2]:
        kind = event["type"].removeprefix("content_block_")
        assert (parts is None) == (kind == "start")
        assert event["index"] == len(blocks) - (kind != "start")
        if kind == "start":
            blocks.append(event["content_block"])
            parts = []
        elif kind == "delta":
            field = FIELDS[event["delta"]["type"]]
            if field == "partial_json":
                parts.append(event["delta"][field])
            else:
                blocks[-1][field] += event["delta"][field]
        else:
            assert kind == "stop"
            if parts:
                blocks[-1]["input"] = json.loads("".join(parts))
            parts = None
    assert parts is None
    last = events[-2]
    return message | last["delta"] | {"usage": last["usage"]}


FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


def comparable(message):
    """What two equal requests have in common: ids differ, and the second finds a cached prefix."""
    usage = message["usage"]
    tokens = usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]
    blocks = [{k: v for k, v in b.items() if k != "id"} for b in message["content"]]
    return message | {"id": None, "usage": tokens, "content": blocks}


def both(worker, *arguments, **fields):
    """The whole message, after checking that the streamed one is the same."""
    plain = ask(worker, *arguments, **fields)
    streamed = whole_of(ask(worker, *arguments, stream=True, **fields))
    assert comparable(streamed) == comparable(plain)
    return plain


def refused(worker, status=400, path=PATH, headers=None, **fields):
    body = {"messages": [user()], "max_tokens": 5} | fields
    for stream in (False, True) if path == PATH else (None,):
        sent = body | ({"stream": stream} if stream is not None else {})
        reply = worker.post(path, {k: v for k, v in sent.items() if v != "absent"}, headers=headers)
        assert reply.status == status, reply.body
        error = reply.json
        assert set(error) == {"type", "error", "request_id"}
        assert error["type"] == "error"
        assert set(error["error"]) == {"type", "message"}
        assert error["request_id"] == reply.headers["Request-Id"] == reply.headers["X-Request-Id"]
    return error["error"]


def test_a_message_says_what_the_chat_says(cpu):
    chat = cpu.chat("Hello")
    message = both(cpu)
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
    assert message["content"] == [said(chat["choices"][0]["message"]["content"])]
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    usage = message["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert (total, usage["output_tokens"]) == (chat["usage"]["prompt_tokens"], 8)
    assert usage["cache_creation_input_tokens"] == 0
    assert usage["output_tokens_details"] == {"thinking_tokens": 0}


def test_cached_tokens_are_counted_apart_from_input_tokens(cpu):
    messages = [user("cached " + " ".join(map(str, range(100))))]
    first, second = ask(cpu, messages)["usage"], ask(cpu, messages, stream=True)
    assert first["cache_read_input_tokens"] == 0
    start, end = second[0]["message"]["usage"], second[-2]["usage"]
    for usage in (start, end):
        assert usage["cache_read_input_tokens"] >= 16
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == first["input_tokens"]
    assert end["output_tokens"] == 8


def test_a_message_says_why_it_stopped(cpu):
    text = ask(cpu, max_tokens=30)["content"][0]["text"]
    stop = text[10:12]
    message = both(cpu, max_tokens=30, stop_sequences=[stop, "never there"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    assert message["content"] == [said(text[: text.index(stop)])]
    message = both(cpu, max_tokens=1, stop_sequences=["never there"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)


def test_more_tokens_than_the_context_has_room_for_are_what_fits(sim):
    message = both(sim, max_tokens=200_000, ignore_eos=True)
    usage = message["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"]
    assert (message["stop_reason"], total) == ("model_context_window_exceeded", 2048)
    error = refused(sim, messages=[user("x " * 5000)], max_tokens=200_000)
    assert error["message"].startswith("prompt is too long: ")


def test_forms_of_system_and_content(cpu):
    expected = cpu.chat([{"role": "system", "content": "Be brief.\nNow."}, user("Hello\nthere")])[
        "choices"
    ][0]["message"]["content"]
    hints = {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "citations": None}
    system = [said("Be brief.") | hints, said("Now.")]
    for messages, fields in (
        ([user("Hello\nthere")], {"system": "Be brief.\nNow."}),
        ([user([said("Hello") | hints, said("there")])], {"system": system}),
        ([user("Hello"), user("there")], {"system": system, "cache_control": hints}),
        ([{"role": "system", "content": system}, user("Hello\nthere")], {}),
        ([user("Hello\nthere")], {"system": system, "metadata": {"user_id": "u"}}),
    ):
        assert ask(cpu, messages, **fields)["content"] == [said(expected)]


def test_the_answer_goes_on_with_a_last_assistant_message(cpu):
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    chat = cpu.chat([user(), assistant("Well, the")], **fields)
    message = both(cpu, [user(), assistant([said("Well, the")])])
    assert message["content"] == [said(chat["choices"][0]["message"]["content"])]


def test_the_count_of_tokens_is_that_of_the_prompt(hermes):
    history = [
        user("Weather?"),
        assistant([said("I look."), call(city="Bonn")]),
        user([result([said("Rain."), said("Wind.")]), said("So?")]),
    ]
    for fields in (
        {"messages": [user()]},
        {"messages": [user("Hi"), assistant("Well, the")], "system": "Be brief."},
        {"messages": history, "tools": CLIENT_TOOLS, "thinking": THINK},
    ):
        usage = ask(hermes, **fields, max_tokens=1)["usage"]
        counted = hermes.post(COUNT, fields).json
        total = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert counted == {"input_tokens": total}


def test_thinking_is_a_block_in_front(hermes):
    fields = {"temperature": 1, "seed": 2, "max_tokens": 12, "ignore_eos": True}
    message = both(hermes, **fields, thinking=THINK)
    [block] = message["content"]
    assert set(block) == {"type", "thinking", "signature"}
    assert block["type"] == "thinking"
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] == 12
    chat = hermes.chat(**fields, chat_template_kwargs={"thinking": True})
    assert block["thinking"] == chat["choices"][0]["message"]["reasoning_content"]
    kinds = [block["type"] for block in both(hermes, **fields)["content"]]
    assert kinds == ["text"]
    ask(hermes, [user(), assistant([block, said("Hi")]), user("And?")], thinking=THINK)


def test_tools_there_and_back(hermes):
    fields = {"tools": CLIENT_TOOLS, "temperature": 1, "seed": 4, "max_tokens": WHOLE}
    message = both(hermes, **fields, tool_choice=ONE_CALL)
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    [block] = message["content"]
    assert block["type"] == "tool_use"
    assert block["name"] in ("weather", "news")
    assert block["input"]["city"] in ("Bonn", "Ulm")
    assert 1 <= block["input"]["days"] <= 9
    back = [user("Weather?"), assistant(message["content"])]
    back.append(user([{"type": "tool_result", "tool_use_id": block["id"], "content": "Rain."}]))
    answer = ask(hermes, back, tools=CLIENT_TOOLS, tool_choice={"type": "none"}, max_tokens=3)
    assert [block["type"] for block in answer["content"]] == ["text"]


def test_a_chosen_tool_is_called(hermes):
    fields = {"tools": CLIENT_TOOLS, "temperature": 1, "seed": 1, "max_tokens": WHOLE}
    choice = {"type": "tool", "name": "news", "disable_parallel_tool_use": True}
    [block] = both(hermes, **fields, tool_choice=choice)["content"]
    assert block["name"] == "news"
    count = [
        hermes.post(COUNT, {"messages": [user()], **more}).json["input_tokens"]
        for more in (
            {},
            {"tools": CLIENT_TOOLS, "tool_choice": {"type": "none"}},
            {"tools": CLIENT_TOOLS, "tool_choice": {"type": "auto"}},
            {"tools": CLIENT_TOOLS},
        )
    ]
    assert count[0] == count[1] < count[2] == count[3]
    error = refused(hermes, tools=CLIENT_TOOLS, tool_choice={"type": "tool", "name": "x"})
    assert "tool_choice" in error["message"]


def test_a_call_that_the_limit_cuts_has_an_empty_input(hermes):
    fields = {"tools": CLIENT_TOOLS, "tool_choice": ONE_CALL, "temperature": 1, "seed": 4}
    lengths = range(1, 40, 3)
    cut = [ask(hermes, **fields, max_tokens=length) for length in lengths]
    calls = [b for message in cut for b in message["content"] if b["type"] == "tool_use"]
    assert {message["stop_reason"] for message in cut} == {"max_tokens"}
    assert calls
    assert all(isinstance(block["input"], dict) for block in calls)


def test_an_answer_that_fits_a_schema(cpu):
    schema = {
        "type": "object", "required": ["kind"], "additionalProperties": False,
        "properties": {"kind": {"enum": ["cat", "dog"]}},
    }  # fmt: skip
    form = {"format": {"type": "json_schema", "schema": schema}, "effort": "high"}
    message = both(cpu, output_config=form, max_tokens=WHOLE, temperature=1, seed=3)
    assert json.loads(message["content"][0]["text"])["kind"] in ("cat", "dog")
    assert message["stop_reason"] == "end_turn"
    form["format"]["schema"] = {"type": 5}
    assert "output_config.format" in refused(cpu, output_config=form)["message"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("max_tokens", "absent", "required"),
        ("max_tokens", 0, "max_tokens"),
        ("messages", [], "messages"),
        ("messages", "absent", "required"),
        ("messages", [user([{"type": "image", "source": {}}])], "[0].content[0] is an image"),
        ("messages", [user([{"type": "document"}])], "[0].content[0] is a document"),
        ("messages", [user([result([{"type": "image"}])])], "content[0] is an image"),
        ("messages", [user([{"type": "audio"}])], "messages[0].content"),
        ("messages", [user([said(5)])], "messages[0].content[0].text: must be a string, not 5"),
        ("messages", [user([call()])], "role user has no tool_use block"),
        ("messages", [assistant([result("x")])], "role assistant has no tool_result block"),
        ("messages", [user([{"type": "text"}])], "text: the field is required"),
        ("messages", [user(5)], "messages[0].content: must be a string or a list, not 5"),
        ("messages", [{"role": "tool", "content": "x"}], "messages[0].role"),
        ("messages", [assistant([{"type": "redacted_thinking", "data": "x"}])], "encrypted"),
        ("messages", [user([said("x") | {"colour": "red"}])], "messages[0].content[0].colour"),
        ("system", [{"type": "image"}], "this model takes text only; system[0] is an image"),
        ("system", 5, "system: must be a string or a list, not 5"),
        ("thinking", {"type": "enabled"}, "budget_tokens"),
        ("thinking", {"type": "between_tools"}, "thinking"),
        ("tools", [{"type": "web_search_20250305", "name": "web_search"}], "tools[0]"),
        ("tools", [{"name": "a b", "input_schema": {}}], "tools[0].name"),
        (
            "tools",
            [{"name": "a", "input_schema": 5}],
            "tools[0].input_schema: must be an object, not 5",
        ),
        ("tool_choice", {"type": "some"}, "tool_choice"),
        ("stop_sequences", [""], "stop_sequences"),
        ("temperature", 3, "temperature"),
        ("output_config", {"effort": "some"}, "output_config.effort"),
        ("mcp_servers", [{"url": "x"}], "unknown field: mcp_servers"),
        ("n", 2, "unknown field: n"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(cpu, field, value, words):
    error = refused(cpu, **{field: value})
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]


def test_null_is_absent(cpu):
    names = "system tools tool_choice thinking stop_sequences top_p top_k container service_tier"
    expected = ask(cpu)["content"]
    assert ask(cpu, **dict.fromkeys(names.split()))["content"] == expected


def test_errors_have_anthropic_s_shape_and_types(cpu):
    assert refused(cpu, 404, model="other")["type"] == "not_found_error"
    assert refused(cpu, 404, COUNT, model="other", max_tokens="absent")["type"] == "not_found_error"
    kinds = {
        404: ("not_found_error", cpu.get(PATH + "/batches")),
        405: ("invalid_request_error", cpu.get(PATH)),
        413: ("request_too_large", cpu.post(PATH, b"x" * (9 << 20))),
        415: ("invalid_request_error", cpu.post(PATH, b"x", headers={"Content-Type": "text/x"})),
        400: ("invalid_request_error", cpu.post(PATH, b"{")),
    }
    for status, (kind, reply) in kinds.items():
        assert (reply.status, reply.json["error"]["type"]) == (status, kind)
        assert reply.headers["Content-Type"].startswith("application/json")
    assert kinds[405][1].headers["Allow"] == "POST"


def test_the_key_of_anthropic_s_clients(tmp_path):
    file = tmp_path / "keys"
    file.write_text("alice:key-a\nbob:key-b\n")
    file.chmod(0o600)
    with Worker("--device", "cpu", "--api-key-file", file) as worker:
        body = {"messages": [user()], "max_tokens": 2}
        good = {"X-Api-Key": "key-a", "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
        assert worker.post(PATH + "?beta=true", body, headers=good).status == 200
        assert worker.post("/v1/chat/completions", body, headers={"x-api-key": "key-b"}).json["id"]
        both = {"X-Api-Key": "key-a", "Authorization": "Bearer wrong"}
        assert worker.post(PATH, body, headers=both).status == 200
        for headers in ({}, {"X-Api-Key": "key"}, {"X-Api-Key": "alice:key-a"}):
            error = refused(worker, 401, headers=headers)
            assert error["type"] == "authentication_error"
            assert "X-Api-Key" in error["message"]


def test_http_10_streams_have_no_chunk_framing(cpu):
    body = json.dumps({"messages": [user()], "stream": True, "max_tokens": 3}).encode()
    data = cpu.raw(http_request("POST", PATH, body, "1.0"))
    assert events_of(data.partition(b"\r\n\r\n")[2])


def test_a_client_that_leaves_ends_its_stream(sim):
    with Worker("--device", "sim") as slow:
        connection = slow.open_stream(PATH, prompt=None, messages=[user()], max_tokens=1500)
        assert slow.health()["running"] == 1
        connection.close()
        wait_for(slow.is_idle, 5.0, slow.health)


def test_overload_and_shutdown_are_errors_in_anthropic_s_format():
    options = ("--device", "sim", "--max-num-seqs", "1", "--max-queue", "1")
    with Worker(*options, "--shutdown-timeout", "0") as worker:
        fields = {"prompt": None, "messages": [user()], "max_tokens": 1500}
        running = worker.open_stream(PATH, **fields)
        body = {"messages": [user()], "max_tokens": 1500, "stream": True, "ignore_eos": True}
        waiting = worker.connect()
        waiting.sendall(http_request("POST", PATH, json.dumps(body).encode()))
        wait_for(lambda: worker.health()["waiting"] == 1, 5.0, worker.health)
        reply = worker.post(PATH, body)
        assert (reply.status, reply.json["error"]["type"]) == (429, "rate_limit_error")
        assert int(reply.headers["Retry-After"]) >= 1
        worker.process.terminate()
        data = b""
        while part := running.recv(65536):
            data += part
        last = data.partition(b"event: error\n")[2].split(b"\n")[0]
        error = json.loads(last.removeprefix(b"data: "))
        assert error["type"] == "error"
        assert error["error"]["type"] == "overloaded_error"
        assert worker.wait() == 0
        running.close()
        waiting.close()
