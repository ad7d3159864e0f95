"""The events that become of the core's frames, where a real stream seldom has them."""

import json

import pytest

from ingle.server import convert
from ingle.server.messages import Shape
from ingle.server.messages_stream import MessageStream

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 1,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
}


@pytest.fixture
def stream():
    return MessageStream(Shape(convert.Caller("", "msg_1", 0, False, "m")), len)


def frame(**delta):
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice], "usage": USAGE}).encode() + b"\n\n"


def events(data):
    blocks = [block.split(b"\ndata: ") for block in data.split(b"\n\n") if block]
    found = [json.loads(block[1]) for block in blocks]
    assert [block[0] for block in blocks] == [b"event: " + e["type"].encode() for e in found]
    return found


def test_signs_of_life_are_comments_until_the_message_starts_then_pings(stream):
    assert stream.begin() == b""
    assert stream.translate(b":\n\n") == b":\n\n"
    start, ping, block, delta = events(stream.translate(frame(role="assistant", content="Hi")))
    assert start["message"]["usage"]["input_tokens"] == 5
    assert start["message"]["usage"]["cache_read_input_tokens"] == 4
    assert ping == {"type": "ping"}
    assert block["content_block"] == {"type": "text", "text": ""}
    assert delta["delta"] == {"type": "text_delta", "text": "Hi"}
    assert events(stream.translate(b":\n\n")) == [{"type": "ping"}]


@pytest.mark.parametrize(
    ("code", "kind"), [("shutdown", "overloaded_error"), ("step_failed", "api_error")]
)
def test_a_failure_is_the_last_event(stream, code, kind):
    stream.translate(frame(content="Hi"))
    error = json.dumps({"error": {"message": "m", "code": code}}).encode()
    found = events(stream.translate(b"data: " + error + b"\n\ndata: [DONE]\n\n"))
    assert found == [{"type": "error", "error": {"type": kind, "message": "m"}}]


def test_thinking_text_and_calls_are_blocks_one_after_the_other(stream):
    call = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": '{"a"'}}
    more = {"index": 0, "function": {"arguments": ": 1}"}}
    other = {"index": 1, "id": "call_2", "function": {"name": "g"}}
    parts = [
        frame(reasoning_content="Hm"),
        frame(content="I look."),
        frame(tool_calls=[call]),
        frame(tool_calls=[more, other]),
        b"data: [DONE]\n\n",
    ]
    found = events(b"".join(stream.translate(part) for part in parts))
    assert [(event["type"], event.get("index")) for event in found[2:]] == [
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
        ("content_block_delta", 2),
        ("content_block_stop", 2),
        ("content_block_start", 3),
        ("content_block_stop", 3),
        ("message_delta", None),
        ("message_stop", None),
    ]
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas] == [
        *("thinking_delta", "signature_delta", "text_delta"),
        *("input_json_delta", "input_json_delta"),
    ]
    assert "".join(d["partial_json"] for d in deltas[-2:]) == '{"a": 1}'
    assert found[-2]["usage"]["output_tokens_details"] == {"thinking_tokens": 1}
