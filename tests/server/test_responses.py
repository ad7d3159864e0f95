"""POST /v1/responses, plain and streamed, by hand and with the official client."""

import json

import openai
import pytest

from server.named_events import named_events
from server.test_structured import FORMAT, THINKING, TOOLS, WHOLE, assert_call, assert_fits
from server.worker import TINY, Worker, wait_for

MODEL = "llama-tied-bf16"
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]


@pytest.fixture(scope="module")
def hermes(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "thinking.jinja"
    path.write_text(THINKING)
    with Worker("--device", "cpu", "--chat-template", path, model=TINY) as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


def respond(worker, given="Hello", **fields):
    body = {"input": given, "temperature": 0, "max_output_tokens": 8} | fields
    reply = worker.post("/v1/responses", body)
    assert reply.status == 200, reply.body
    return events_of(reply.body) if fields.get("stream") else reply.json


def events_of(body):
    """The events of a stream, after checking framing, names and numbers."""
    events = named_events(body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def refusal(worker, **body):
    reply = worker.post("/v1/responses", {"input": "x"} | body)
    assert reply.status == 400, reply.body
    return reply.error["param"]


def without_ids(response):
    """What two equal requests have in common."""
    items = [{k: v for k, v in item.items() if k != "id"} for item in response["output"]]
    left_out = ("id", "created_at", "completed_at", "usage")
    same = {k: v for k, v in response.items() if k not in left_out} | {"output": items}
    usage = response["usage"]
    return same | {"tokens": (usage["input_tokens"], usage["output_tokens"])}


def test_a_response_says_what_the_chat_says(cpu):
    chat = cpu.chat("Hello")
    response = respond(cpu)
    assert response["id"].startswith("resp_")
    assert (response["object"], response["model"]) == ("response", MODEL)
    assert (response["status"], response["error"]) == ("incomplete", None)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    [item] = response["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    [part] = item["content"]
    assert (part["type"], part["annotations"]) == ("output_text", [])
    assert part["text"] == chat["choices"][0]["message"]["content"]
    usage = response["usage"]
    assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == 8
    assert usage["total_tokens"] == chat["usage"]["total_tokens"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert response["store"] is False
    assert response["previous_response_id"] is None


def test_a_response_that_ends_by_itself_is_completed(cpu):
    response = respond(cpu, stop=["e"], max_output_tokens=100)
    assert (response["status"], response["incomplete_details"]) == ("completed", None)
    assert response["output"][0]["status"] == "completed"
    assert response["completed_at"] >= response["created_at"]
    streamed = respond(cpu, stop=["e"], max_output_tokens=100, stream=True)
    assert streamed[-1]["type"] == "response.completed"


def test_instructions_and_forms_of_input(cpu):
    plain = cpu.chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    )
    expected = plain["choices"][0]["message"]["content"]
    parts = [{"type": "input_text", "text": "Hello"}]
    for form in (
        "Hello",
        [{"role": "user", "content": "Hello"}],
        [{"role": "user", "content": parts}],
        [{"type": "message", "role": "user", "content": parts, "status": None, "id": "x"}],
    ):
        response = respond(cpu, form, instructions="Be brief.")
        assert response["output"][0]["content"][0]["text"] == expected, form
    developer = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert respond(cpu, developer)["output"][0]["content"][0]["text"] == expected


def test_streamed_is_the_same_response(cpu):
    plain = respond(cpu, metadata={"a": "b"})
    events = respond(cpu, metadata={"a": "b"}, stream=True)
    assert [event["type"] for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [event["type"] for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = events[4:-4]
    assert {event["type"] for event in deltas} == {"response.output_text.delta"}
    text = plain["output"][0]["content"][0]["text"]
    assert "".join(event["delta"] for event in deltas) == text == events[-4]["text"]
    assert without_ids(events[-1]["response"]) == without_ids(plain)
    assert events[0]["response"]["status"] == "in_progress"
    assert {event["response"]["id"] for event in (*events[:2], events[-1])} == {
        events[0]["response"]["id"]
    }
    item_id = events[2]["item"]["id"]
    assert {event["item_id"] for event in events[3:-2]} == {item_id}
    assert events[-1]["response"]["output"][0]["id"] == item_id


def test_http_10_streams_have_no_chunk_framing(cpu):
    body = json.dumps(
        {"input": "x", "stream": True, "max_output_tokens": 3, "temperature": 0}
    ).encode()
    head = b"POST /v1/responses HTTP/1.0\r\nContent-Type: application/json\r\n"
    data = cpu.raw(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert events_of(data.partition(b"\r\n\r\n")[2])[-1]["type"] == "response.incomplete"


def test_log_probs_cover_every_token_of_the_answer(cpu):
    include = ["message.output_text.logprobs"]
    plain = respond(cpu, include=include, top_logprobs=2)["output"][0]["content"][0]
    assert len(plain["logprobs"]) == 8
    assert all(len(entry["top_logprobs"]) == 2 for entry in plain["logprobs"])
    # An answer drops the character that it was cut in.
    joined = "".join(entry["token"] for entry in plain["logprobs"])
    assert joined.rstrip("\ufffd") == plain["text"].rstrip("\ufffd")
    events = respond(cpu, include=include, top_logprobs=2, stream=True)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == plain["logprobs"]


def test_an_answer_fits_its_json_schema(cpu):
    schema = FORMAT["json_schema"]
    form = {"type": "json_schema", "name": "animal", "schema": schema["schema"], "strict": True}
    response = respond(cpu, text={"format": form}, max_output_tokens=WHOLE, temperature=1, seed=2)
    assert_fits(response["output"][0]["content"][0]["text"])
    assert response["text"]["format"]["name"] == "animal"
    plain = respond(cpu, text={"format": {"type": "text"}, "verbosity": "medium"})
    assert without_ids(plain)["output"] == without_ids(respond(cpu))["output"]


def test_calls_and_the_way_back_with_the_official_client(hermes):
    fields = {"model": MODEL, "tools": FUNCTIONS, "tool_choice": "required"}
    fields |= {"parallel_tool_calls": False, "max_output_tokens": WHOLE, "store": False}
    fields |= {"extra_body": {"seed": 4}}
    with openai.OpenAI(base_url=hermes.url + "/v1", api_key="none", max_retries=0) as client:
        plain = client.responses.create(input="Weather?", **fields)
        with client.responses.stream(input="Weather?", **fields) as stream:
            streamed = stream.get_final_response()
        [call], [same] = plain.output, streamed.output
        assert (call.type, call.status) == ("function_call", "completed")
        assert (call.name, call.arguments) == (same.name, same.arguments)
        as_chat = {"name": call.name, "arguments": call.arguments}
        assert_call({"type": "function", "id": call.call_id, "function": as_chat})
        history = [{"role": "user", "content": "Weather?"}, call.model_dump()]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
        again = client.responses.create(
            model=MODEL, input=[*history, result], tools=FUNCTIONS, tool_choice="none",
            max_output_tokens=3, temperature=0,
        )  # fmt: skip
        assert again.output[0].type == "message"
    chat = hermes.chat(
        [
            history[0],
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": call.call_id, "type": "function", "function": as_chat}]},
            {"role": "tool", "tool_call_id": call.call_id, "content": "Rain."},
        ],
        max_tokens=3,
    )  # fmt: skip
    assert again.usage.input_tokens == chat["usage"]["prompt_tokens"]


def test_reasoning_is_an_item_of_its_own(hermes):
    fields = {"temperature": 1, "seed": 2, "max_output_tokens": 12, "ignore_eos": True}
    fields |= {"chat_template_kwargs": {"thinking": True}}
    plain = respond(hermes, **fields)
    [item] = plain["output"]
    assert (item["type"], item["status"], item["summary"]) == ("reasoning", "incomplete", [])
    assert item["content"][0]["type"] == "reasoning_text"
    assert plain["usage"]["output_tokens_details"]["reasoning_tokens"] == 12
    events = respond(hermes, **fields, stream=True)
    deltas = [e["delta"] for e in events if e["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == item["content"][0]["text"]
    assert without_ids(events[-1]["response"]) == without_ids(plain)
    replay = [{"role": "user", "content": "Hello"}, item, {"role": "assistant", "content": "Hi"}]
    respond(hermes, [*replay, {"role": "user", "content": "And?"}])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", True),
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("background", True),
        ("truncation", "auto"),
        ("prompt", {"id": "p"}),
        ("reasoning", {"effort": "high"}),
        ("text", {"verbosity": "low"}),
        ("tools", [{"type": "web_search"}]),
        ("include", ["file_search_call.results"]),
        ("input", []),
        ("input", [{"type": "item_reference", "id": "msg_1"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
        ("input", [{"content": "x"}]),
        ("input", [{"role": "user"}]),
        ("input", [{"type": "function_call", "name": "f"}]),
        ("input", [{"type": "function_call_output", "call_id": "c"}]),
        ("top_logprobs", 3),
        ("max_output_tokens", 0),
        ("temperature", 3),
        ("n", 2),
        ("messages", [{"role": "user", "content": "x"}]),
        ("service_tier", "flex"),
    ],
)
def test_what_is_not_honoured_is_refused(cpu, field, value):
    assert refusal(cpu, **{field: value}).split("[")[0].split(".")[0] == field
    assert refusal(cpu, **{field: value}, stream=True).split("[")[0].split(".")[0] == field


def test_null_and_off_are_absent(cpu):
    fields = "store previous_response_id conversation background truncation prompt max_tool_calls"
    nothing = dict.fromkeys([*fields.split(), "text", "tools", "include", "metadata", "reasoning"])
    off = {"store": False, "background": False, "truncation": "disabled", "reasoning": {}}
    for values in (nothing, nothing | off):
        assert without_ids(respond(cpu, **values))["output"] == without_ids(respond(cpu))["output"]


def test_errors_before_the_first_event_are_plain(cpu):
    reply = cpu.post("/v1/responses", {"input": "x " * 5000, "stream": True})
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert cpu.post("/v1/responses", {"input": "x", "model": "y"}).status == 404
    assert cpu.request("GET", "/v1/responses").status == 405


def test_the_openai_client_reads_an_answer_and_its_stream(cpu):
    with openai.OpenAI(base_url=cpu.url + "/v1", api_key="none", max_retries=0) as client:
        fields = {"model": MODEL, "input": "Hello", "temperature": 0, "max_output_tokens": 12}
        plain = client.responses.create(**fields)
        events = list(client.responses.create(**fields, stream=True))
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == plain.output_text
        # The second finds the prompt in the cache, unless another test has put it there before.
        usage = events[-1].response.usage
        assert usage.model_copy(update={"input_tokens_details": None}) == plain.usage.model_copy(
            update={"input_tokens_details": None}
        )
        turns = [{"role": "user", "content": "Hello"}, *[i.model_dump() for i in plain.output]]
        turns.append({"role": "user", "content": "And?"})
        assert client.responses.create(**(fields | {"input": turns})).output_text


def test_a_client_that_leaves_ends_the_response():
    with Worker("--device", "sim") as worker:
        connection = worker.open_stream(
            "/v1/responses", prompt=None, input="x", max_tokens=None, max_output_tokens=1500
        )
        assert worker.health()["in_system"] == 1
        connection.close()
        wait_for(lambda: worker.health()["in_system"] == 0, 1, lambda: str(worker.health()))
        assert worker.stop() == 0


def test_running_responses_get_an_error_event_at_the_end():
    with Worker("--device", "sim", "--shutdown-timeout", "0.2") as worker:
        connection = worker.open_stream(
            "/v1/responses", prompt=None, input="x", max_tokens=None, max_output_tokens=1500
        )
        worker.process.terminate()
        data = b""
        with connection:
            while part := connection.recv(65536):
                data += part
        assert b'"type":"response.failed"' in data
        assert b"the server is shutting down" in data
        assert data.endswith(b"\r\n0\r\n\r\n")
        assert worker.wait() == 0


def test_errors_name_the_fields_of_this_endpoint(cpu):
    long = "word " * 3000
    assert refusal(cpu, input=long) == "input"
    assert refusal(cpu, input=[{"role": "user", "content": long}]) == "input"
    assert refusal(cpu, instructions=long) == "instructions"
    assert refusal(cpu, instructions=long, input=long * 2) == "input"
    assert refusal(cpu, max_output_tokens=10**6) == "max_output_tokens"
    reply = cpu.post("/v1/responses", {"input": "x", "max_output_tokens": 10**6})
    assert " in input," in reply.error["message"]
    reply = cpu.post("/v1/responses", {"input": "x", "instructions": long})
    assert "messages" not in reply.error["message"]
    form = {"type": "json_schema", "name": "f", "schema": {"type": "nothing"}}
    reply = cpu.post("/v1/responses", {"input": "x", "text": {"format": form}})
    assert (reply.status, reply.error["param"]) == (400, "text.format")
    assert "response_format" not in reply.error["message"]
