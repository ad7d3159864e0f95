"""What one request may not do to others, and an end not to requests on their way."""

import json
import signal
import threading
import time

import pytest

from server.worker import Worker, http_request, wait_for

# Every text has very many parses: a mask takes as long as the bounds of the library let it.
AMBIGUOUS = "start: s\ns: s s | s s s | /[ -~]/ | /\\w/ | /./ | /[a-z]/"


@pytest.fixture(scope="module")
def worker():
    with Worker("--device", "sim", "--max-num-seqs", 32, model="demo") as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


def test_a_grammar_whose_masks_are_slow_ends_its_own_request(worker):
    body = {"prompt": "a", "max_tokens": 200, "n": 8, "guided_grammar": AMBIGUOUS}
    began = time.monotonic()
    reply = worker.post("/v1/completions", body)
    took = time.monotonic() - began
    # At the start or on the way, wherever its bounds are met.
    assert reply.status == 400, reply.body
    assert reply.error["code"] in ("invalid_value", "grammar_too_complex")
    assert took < 5, took
    # None of its masks is left in anybody's way.
    began = time.monotonic()
    worker.complete(guided_regex="[a-z]{9}", max_tokens=2)
    assert time.monotonic() - began < 2


def test_a_client_that_leaves_a_slow_grammar_frees_its_slots(worker):
    body = {"prompt": "a", "max_tokens": 200, "n": 30, "stream": True, "guided_grammar": AMBIGUOUS}
    connection = worker.connect()
    data = json.dumps(body).encode()
    connection.sendall(http_request("POST", "/v1/completions", data))
    wait_for(lambda: worker.health()["in_system"] or connection_has_ended(connection), 10, str)
    connection.close()
    wait_for(lambda: worker.health()["in_system"] == 0, 2, lambda: str(worker.health()))


def connection_has_ended(connection):
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return False


def test_one_large_event_is_no_slow_reader(worker):
    ids = [1 + place % 200 for place in range(4000)]
    body = {"prompt": ids, "n": 4, "stream": True, "max_tokens": 1, "echo": True, "logprobs": 20}
    before = worker.metric("ingle:slow_readers_total")
    reply = worker.post("/v1/completions", body)
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert len(reply.body) > 4 << 20
    assert worker.metric("ingle:slow_readers_total") == before


def test_bounds_that_32_bits_cannot_hold_are_met(worker):
    worker.complete(repetition_penalty=0.01, max_tokens=1)


@pytest.mark.parametrize("delay_s", [0.02, 0.1])
def test_a_request_on_its_way_is_waited_for(delay_s):
    """Its grammar takes longer to compile than the signal takes to come."""
    properties = [
        {"type": "object", "properties": {f"p{i}": {"type": "integer", "maximum": i * 7919}}}
        for i in range(1, 900)
    ]
    body = {"prompt": "a", "max_tokens": 5, "guided_json": {"anyOf": properties}}
    replies = []
    with Worker("--device", "sim", model="demo") as worker:
        asking = threading.Thread(
            target=lambda: replies.append(worker.post("/v1/completions", body))
        )
        asking.start()
        time.sleep(delay_s)  # Where it falls decides what is tested, not whether it passes.
        worker.process.send_signal(signal.SIGTERM)
        asking.join(30)
        assert worker.wait() == 0, worker.errors()
        assert "CRITICAL" not in worker.errors()
    # Accepted before the signal, or refused because of it.
    assert replies[0].status in (200, 400, 503), replies[0].body
    assert b"shut down" not in replies[0].body
