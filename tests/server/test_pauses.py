"""No body holds the event loop up: others are answered while one of 8 MB is read.

Pauses are compared with what Python's own decoder takes for one such body on this machine: reading
it on the loop would be a pause of several times that.
"""

import gc
import http.client
import json
import threading
import time

import pytest

from server.worker import LIMIT_S, http_request, wait_for

MOST_BYTES = 8 << 20
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = "/v1/messages"


def filled(start, entry, end, path=TEXT, separator=","):
    """A body of nearly 8 MB, made when called: as many entries as fit."""
    count = (MOST_BYTES - len(start) - len(end)) // (len(entry) + len(separator))
    return path, lambda: (start + separator.join([entry] * count) + end).encode()


def numbered(start, entry, end, path=TEXT, count=100_000):
    """A body of entries that differ."""
    return path, lambda: (start + ",".join(entry % i for i in range(count)) + end).encode()


X = '{"prompt":"x",'
MESSAGE = '{"messages":[{"role":"user","content":"x"}],'
TURNS = '{"max_tokens":1,"messages":['
BLOCKS = TURNS + '{"role":"%s","content":['
DEEP = "[" * 60 + "]" * 60
BODIES = {
    "lists in an unknown field": filled(X + '"a":[', "[]", "]}"),
    "lists in a field without effect": filled(X + '"user":[', "[]", "]}"),
    "lists beside an unknown field": filled(X + '"zzz":null,"user":[', "[]", "]}"),
    "deep lists": filled(X + '"user":[', DEEP, "]}"),
    "deeper lists": (
        TEXT,
        lambda: b'{"prompt":' + b"[" * 4_000_000 + b"]" * 4_000_000 + b"}",
    ),
    "lists for a prompt": filled('{"prompt":[', "[]", "]}"),
    "a prompt of ids": filled('{"prompt":[', "12345", "]}"),
    "a prompt of short ids": filled('{"prompt":[', "1", "]}"),
    "a prompt of text": filled('{"prompt":"', "word", '"}', separator=" "),
    "a prompt of escapes": filled('{"prompt":"', "\\n", '"}', separator=""),
    "prompts": filled('{"prompt":[', '"x"', "]}"),
    "numbers in an unknown field": filled(X + '"a":[', "1.25", "]}"),
    "stop strings": filled(X + '"stop":[', '"stop here"', "]}"),
    "long stop strings": filled(X + '"stop":[', '"' + "s" * 1024 + '"', "]}"),
    "stop ids": filled(X + '"stop_token_ids":[', "7", "]}"),
    "stop ids among texts": filled(X + '"stop":[', "777", "]}"),
    "allowed ids": filled(X + '"allowed_token_ids":[', "7", "]}"),
    "biases": numbered(X + '"logit_bias":{', '"%d":1', "}}"),
    "more biases": numbered(X + '"logit_bias":{', '"%d":1', "}}", count=60_000),
    "bad words": filled(X + '"bad_words":[', '"bad"', "]}"),
    "choices": filled(X + '"guided_choice":[', '"choice"', "]}"),
    "a regex": filled(X + '"guided_regex":"', "\\n", '"}', separator=""),
    "a schema": numbered(X + '"guided_json":{"properties":{', '"p%d":{"type":"string"}', "}}}"),
    "a schema as text": filled(X + '"guided_json":"{\\"a\\":[', "[]", ']}"}'),
    "a format": numbered(
        MESSAGE + '"response_format":{"type":"json_schema","json_schema":{"schema":{"enum":[',
        '"e%d"', "]}}}}", CHAT,
    ),
    "tools": numbered(
        MESSAGE + '"tools":[', '{"type":"function","function":{"name":"f%d"}}', "]}", CHAT, 15_000
    ),
    "a tool": numbered(
        MESSAGE + '"tools":[{"type":"function","function":{"name":"f","parameters":{"enum":[',
        '"e%d"', "]}}}]}", CHAT, 60_000,
    ),
    "messages": numbered(
        '{"messages":[', '{"role":"user","content":"message %d"}', "]}", CHAT, 16_000
    ),
    "too many messages": filled('{"messages":[', '{"role":"user","content":""}', "]}", CHAT),
    "parts": filled(
        '{"messages":[{"role":"user","content":[', '{"type":"text","text":"\\n"}', "]}]}", CHAT
    ),
    "fewer parts": numbered(
        '{"messages":[{"role":"user","content":[', '{"type":"text","text":"%d"}', "]}]}", CHAT,
        20_000,
    ),
    "a long message": filled('{"messages":[{"role":"user","content":"', "\\n", '"}]}', CHAT, ""),
    "arguments": filled(
        '{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"'
        '{\\"a\\":[', "[]", ']}"}}]}]}', CHAT,
    ),
    "template variables": filled(MESSAGE + '"chat_template_kwargs":{"a":[', "[]", "]}}", CHAT),
    "names of fields": numbered(X, '"field%d":1', "}", count=60_000),
    "ids to detokenise": filled('{"tokens":[', "300", "]}", "/detokenize"),
    "text to tokenise": filled('{"prompt":"', "ab", '"}', "/tokenize", " "),
    "inputs": filled('{"input":[', '{"content":"x","role":"user"}', "]}", "/v1/responses"),
    "calls": numbered(
        '{"input":[', '{"type":"function_call","name":"f","call_id":"%d"}', "]}", "/v1/responses",
        10_000,
    ),
    "turns": numbered(TURNS, '{"role":"user","content":"message %d"}', "]}", MESSAGES, 16_000),
    "turns to count": numbered(
        '{"messages":[', '{"role":"user","content":"%d"}', "]}", MESSAGES + "/count_tokens", 16_000
    ),
    "blocks": numbered(
        BLOCKS % "user", '{"type":"text","text":"%d"}', "]}]}", MESSAGES, 16_000
    ),
    "too many blocks": filled(BLOCKS % "user", '{"type":"text","text":""}', "]}]}", MESSAGES),
    "results": numbered(
        BLOCKS % "user", '{"type":"tool_result","tool_use_id":"%d"}', "]}]}", MESSAGES, 16_000
    ),
    "calls in a turn": numbered(
        BLOCKS % "assistant", '{"type":"tool_use","id":"%d","name":"f","input":{}}', "]}]}",
        MESSAGES, 16_000,
    ),
    "input of a call": filled(
        BLOCKS % "assistant" + '{"type":"tool_use","id":"1","name":"f","input":{"a":[', "[]",
        "]}}]}]}", MESSAGES,
    ),
    "inputs to embed": filled('{"input":[', '"x"', "]}", "/v1/embeddings"),
    "not JSON": filled("[", "[", "]"),
}  # fmt: skip


class Probe(threading.Thread):
    """Asks for something small again and again; remembers the longest wait."""

    def __init__(self, worker):
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection(*worker.address, timeout=LIMIT_S)
        self._ends = threading.Event()
        self.count = 0
        self.longest = 0.0

    def run(self):
        while not self._ends.is_set():
            start = time.perf_counter()
            self._connection.request("GET", "/version")
            self._connection.getresponse().read()
            self.longest = max(self.longest, time.perf_counter() - start)
            self.count += 1
        self._connection.close()

    def __enter__(self):
        self.start()
        wait_for(lambda: self.count > 3, 5.0, lambda: "no answer")
        self.longest = 0.0
        return self

    def __exit__(self, *_):
        self._ends.set()
        self.join()


@pytest.fixture(scope="module")
def yardstick():
    """Seconds that Python's decoder takes for 8 MB of lists."""
    body = filled("[", "[]", "]")[1]()
    times = []
    gc.disable()
    for _ in range(3):
        start = time.perf_counter()
        json.loads(body)
        times.append(time.perf_counter() - start)
    gc.enable()
    return min(times)


def longest_pause(worker, path, body):
    with Probe(worker) as probe:
        reply = worker.post(path, body)
    assert reply.status in (200, 400), (path, reply.body[:300])
    return probe.longest


@pytest.mark.parametrize("name", BODIES)
def test_no_body_holds_the_loop_up(sim, yardstick, name):
    path, make = BODIES[name]
    body = make()
    assert len(body) <= MOST_BYTES
    pauses = []
    # A machine with other work makes pauses of its own; the worker's are there each time.
    for _ in range(6):
        pauses.append(longest_pause(sim, path, body))
        if pauses[-1] < yardstick / 8:
            break
    assert min(pauses) < yardstick / 4, (pauses, yardstick)


@pytest.mark.parametrize("size", [1, 3, 16])
def test_chunks_of_few_bytes_do_not_either(sim, yardstick, size):
    body = b'{"prompt":"' + b"a" * (1 << 20) + b'","max_tokens":1}'
    pieces = (body[i : i + size] for i in range(0, len(body), size))
    data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = http_request(
        "POST", "/tokenize", Transfer_Encoding="chunked", Content_Type="application/json"
    )
    pauses = []
    for _ in range(3):
        start = time.perf_counter()
        with Probe(sim) as probe, sim.connect() as connection:
            connection.sendall(head + data + b"0\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400"), (
                "max_tokens has no place there"
            )
        pauses.append(probe.longest)
        if pauses[-1] < yardstick / 16:
            break
    # A machine with other work makes pauses of its own: those of as long a time without a body.
    with Probe(sim) as idle:
        idle.join(time.perf_counter() - start)
    limit = max(yardstick / 8, 2 * idle.longest)
    assert min(pauses) < limit, (pauses, yardstick, idle.longest)


def test_chunks_of_one_byte_arrive_whole_and_in_order(sim):
    """Two requests on one connection, so that what follows the first is not lost either."""
    words = " ".join(f"word{i}" for i in range(4000))
    body = json.dumps({"prompt": words}).encode()
    data = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = http_request(
        "POST", "/tokenize", Transfer_Encoding="chunked", Content_Type="application/json"
    )
    expected = sim.post("/tokenize", {"prompt": words}).json
    with sim.connect() as connection:
        connection.sendall(head + data + head + data)
        for _ in range(2):
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert json.loads(response.read()) == expected
