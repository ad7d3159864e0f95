"""Streams whose events have names: those of /v1/messages and /v1/responses."""

import json


def named_events(body):
    """The events of a stream without its comments, after checking framing and names."""
    blocks = body.split(b"\n\n")
    assert blocks[-1] == b""
    events = []
    for block in (block for block in blocks[:-1] if block != b":"):
        name, data = block.split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        events.append(event)
    return events
