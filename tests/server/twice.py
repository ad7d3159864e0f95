"""The same request plain and streamed: what a client gathers from the events must be the answer."""

from server.worker import whole

PATHS = {"complete": "/v1/completions", "chat": "/v1/chat/completions"}
ASKED = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}
"""What a request needs, by path."""


def both(ask, *arguments, **fields):
    """Asks twice; answer, ends, tokens, log-probabilities, calls and usage must agree.

    Returns the plain answer.
    """
    plain = ask(*arguments, **fields)
    events = ask(*arguments, stream=True, stream_options={"include_usage": True}, **fields)
    streamed = gathered(events)
    for choice in plain["choices"]:
        without_ids(choice)
        choice.get("message", {}).pop("refusal", None)
    assert streamed["choices"] == plain["choices"]
    assert counts(streamed["usage"]) == counts(plain["usage"])
    return plain


def text_of(ask, *arguments, **fields):
    """The text of the only choice, found by both ways."""
    [(text, _)] = whole(both(ask, *arguments, **fields)).values()
    return text


def refused_twice(worker, path, status=400, **body):
    """The error object of a request that must be refused in the same way, plain and streamed."""
    plain, streamed = (worker.post(path, body | {"stream": stream}) for stream in (False, True))
    return same_error(plain, streamed, status)


def refused_bytes_twice(worker, path, body):
    """The same of a body as bytes, perhaps no JSON; `stream` is put behind its first brace."""
    # Equally long, since errors name columns.
    words = (b"false", b"true ")
    bodies = [body.replace(b"{", b'{"stream":%b,' % word, 1) for word in words]
    assert bodies[0] != bodies[1], body[:100]
    return same_error(*(worker.post(path, each) for each in bodies), 400)


def same_error(plain, streamed, status):
    assert (plain.status, streamed.status) == (status, status), (plain.body, streamed.body)
    assert plain.error == streamed.error
    return plain.error


def gathered(events):
    """A stream's events as one plain answer."""
    choices = {}
    for event in events:
        for part in event["choices"]:
            known = choices.setdefault(part["index"], {"index": part["index"]})
            assert known.get("finish_reason") is None, "nothing follows the end"
            for name, value in part.items():
                if name == "delta":
                    add_delta(known.setdefault("message", {"content": None}), value)
                elif name == "logprobs":
                    add_logprobs(known, value)
                elif name == "text":
                    known["text"] = known.get("text", "") + value
                elif name == "token_ids":
                    known["token_ids"] = known.get("token_ids", []) + value
                else:
                    known[name] = value
    for choice in choices.values():
        assert choice["finish_reason"], choice
        without_ids(choice)
    assert events[-1]["choices"] == []
    return {"choices": [choices[i] for i in sorted(choices)], "usage": events[-1]["usage"]}


def add_delta(message, delta):
    for name, value in delta.items():
        if name == "role":
            assert "role" not in message, "the role is sent once"
            message["role"] = value
        elif name == "tool_calls":
            for call in value:
                add_call(message.setdefault("tool_calls", []), call)
        else:
            message[name] = (message.get(name) or "") + value


def add_call(calls, part):
    if part["index"] == len(calls):
        calls.append({"id": part["id"], "type": part["type"], "function": {"arguments": ""}})
    function = calls[part["index"]]["function"]
    if "name" in part["function"]:
        assert "name" not in function
        function["name"] = part["function"]["name"]
    function["arguments"] += part["function"].get("arguments", "")


def add_logprobs(choice, part):
    known = choice.get("logprobs")
    if part is None or known is None:
        choice["logprobs"] = known or part
        return
    for name, values in part.items():
        if values is not None:
            known[name] = known[name] + values


def without_ids(choice):
    """Ids of calls are random."""
    for call in choice.get("message", {}).get("tool_calls") or []:
        assert call.pop("id").startswith("call_")


def counts(usage):
    """Without what the cache had, in which the second request differs."""
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}
