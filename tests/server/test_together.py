"""Many requests at once. None changes an answer, none stays behind."""

import concurrent.futures
import contextlib
import itertools
import json
import socket

import pytest

from server.twice import both, gathered
from server.worker import Worker, http_request, joined, wait_for, whole

MAIN = {"max_tokens": 30, "ignore_eos": True}


@pytest.fixture(scope="module")
def wide_worker():
    """The tiny model with room for 32 requests a step; prompts come in chunks of 64."""
    arguments = ("--device", "cpu", "--max-num-seqs", "32", "--max-num-batched-tokens", "64")
    with Worker(*arguments) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


@pytest.fixture
def wide(wide_worker):
    yield wide_worker
    wait_until_free(wide_worker)


def wait_until_free(worker):
    """Returns when nothing runs and no block is held."""
    worker.wait_until_idle()
    wait_for(lambda: worker.metric("vllm:kv_cache_usage_perc") == 0, 1, lambda: "blocks are kept")


@contextlib.contextmanager
def company(worker, count, **fields):
    """As many others that run as long as the context lasts; they go when it ends."""
    prompts = ["neighbour " * (1 + i % 7) + str(i) for i in range(count)]
    body = {"prompt": prompts, "max_tokens": 1900, "ignore_eos": True, "temperature": 1} | fields
    with worker.connect() as connection:
        connection.sendall(http_request("POST", "/v1/completions", json.dumps(body).encode()))
        wait_for(lambda: worker.health()["running"] == count, 5, lambda: str(worker.health()))
        yield
        assert worker.health()["running"] == count, "they were there all the time"
    worker.wait_until_idle()


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("neighbours", [1, 7, 31])
def test_neighbours_do_not_change_an_answer(wide, neighbours, temperature):
    fields = MAIN | {"logprobs": 2}
    greedy = both(wide.complete, "The quick brown fox", **fields)
    sampled = both(wide.complete, "The quick", **fields, temperature=1, seed=3)
    with company(wide, neighbours, temperature=temperature):
        beside = both(wide.complete, "The quick brown fox", **fields)
        also = both(wide.complete, "The quick", **fields, temperature=1, seed=3)
    assert beside["choices"] == greedy["choices"]
    assert also["choices"] == sampled["choices"]


FEATURES = {
    "plain": {},
    "log-probs": {"logprobs": 3},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "sampled": {"temperature": 1, "seed": 5},
    "cut": {"temperature": 1.5, "seed": 6, "top_k": 9, "top_p": 0.8, "min_p": 0.01},
    "bias": {"logit_bias": {"298": 3, "85": -100}, "logprobs": 0},
    "allowed": {"allowed_token_ids": [80, 81, 298, 300], "temperature": 1, "seed": 7},
    "grammar": {"guided_regex": "[a-z ]{40}", "temperature": 1, "seed": 8, "ignore_eos": False},
}


def test_features_alternate_at_equal_batch_size_without_effect(wide):
    """Each step has four rows, of one kind, then of another, then of all at once."""
    prompts = ["one", "two", "three", "four"]

    def ask(name, stream=False, only=slice(None)):
        answer = wide.complete(prompts[only], stream=stream, **MAIN | FEATURES[name])
        return (joined if stream else whole)(answer)

    alone = {name: {i: ask(name, only=slice(i, i + 1))[0] for i in range(4)} for name in FEATURES}
    assert len({json.dumps(each) for each in alone.values()}) == len(FEATURES) - 1, "two are equal"
    assert alone["plain"] == alone["log-probs"]
    for i, (first, second) in enumerate(itertools.permutations(FEATURES, 2)):
        assert ask(first, stream=bool(i % 2)) == alone[first]
        assert ask(second, stream=bool(i % 2)) == alone[second]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for stream in (False, True):
            mixed = {name: pool.submit(ask, name, stream) for name in FEATURES}
            assert {name: each.result() for name, each in mixed.items()} == alone


def test_log_probs_do_not_depend_on_the_features_before(wide):
    fields = MAIN | FEATURES["log-probs"]
    reference = both(wide.complete, "one", **fields)["choices"]
    for name in FEATURES:
        wide.complete("one", **MAIN | FEATURES[name])
        assert both(wide.complete, "one", **fields)["choices"] == reference, name


def test_contents_decide_what_is_cached_and_not_ids(wide):
    """Equal request ids and salts, different prompts: also those that differ in the first token."""
    headers = {"X-Request-Id": "same"}
    prompts = [[9] * 64, [10] * 64, [10] + [9] * 63, [9] * 63 + [10]]

    def ask(prompt, stream=False, **fields):
        body = {"prompt": prompt, "temperature": 0, "request_id": "same", "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        reply = wide.post("/v1/completions", body | MAIN | fields, headers=headers)
        assert reply.status == 200
        assert reply.headers["X-Request-Id"] == "same"
        answer = gathered(reply.events) if stream else reply.json
        usage = answer["usage"]["prompt_tokens_details"]
        return answer["choices"][0]["text"], usage["cached_tokens"]

    # What the prompts are answered, each under a salt of its own.
    expected = [ask(prompt, cache_salt=f"own {i}")[0] for i, prompt in enumerate(prompts)]
    for salt in ("one", "two"):
        for i, prompt in enumerate(prompts):
            text, cached = ask(prompt, cache_salt=salt)
            assert text == expected[i]
            # The last shares its first three blocks with the first.
            assert cached == (48 if i == 3 else 0)
        for i, prompt in enumerate(prompts):
            for stream in (False, True):
                assert ask(prompt, stream, cache_salt=salt) == (expected[i], 48)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, prompts * 2, [False] * 4 + [True] * 4))
    assert [text for text, _ in found] == expected * 2


@pytest.fixture(scope="module")
def queue():
    """A sim device whose long answers take seconds; 8 run, the others wait."""
    with Worker("--device", "sim", "--max-num-seqs", "8", "--max-queue", "64") as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


@pytest.mark.parametrize("how", ["plain", "streamed", "both"])
def test_32_clients_that_leave_leave_nothing_behind(queue, how):
    body = {"prompt": "x " * 200, "max_tokens": 1500, "ignore_eos": True}
    made = queue.metric("vllm:generation_tokens_total")
    connections = []
    for i in range(32):
        stream = how == "streamed" or (how == "both" and i % 2 == 0)
        request = json.dumps(body | {"stream": stream, "prompt": f"{i} {body['prompt']}"}).encode()
        connections.append(queue.connect())
        connections[-1].sendall(http_request("POST", "/v1/completions", request))
    wait_for(lambda: queue.health()["in_system"] == 32, 5, lambda: str(queue.health()))
    wait_for(lambda: queue.health()["running"] == 8, 5, lambda: str(queue.health()))
    wait_for(lambda: queue.metric("vllm:kv_cache_usage_perc") > 0, 5, lambda: "no block is in use")
    for connection in connections:
        connection.close()
    wait_for(lambda: queue.health()["in_system"] == 0, 1, lambda: str(queue.health()))
    wait_until_free(queue)
    assert queue.metric("vllm:generation_tokens_total") - made < 32 * 1500 / 4
    queue.complete(max_tokens=1)


def test_a_client_that_reads_byte_by_byte_slows_no_other_stream():
    """The slow client takes one byte whenever another stream has ended; then it is cut off."""
    with Worker("--device", "sim", "--sim-speed", "inf", "--max-num-seqs", "96") as worker:
        fields = {"max_tokens": 60, "ignore_eos": True}
        prompts = [f"stream {i}" for i in range(63)]
        expected = [whole(worker.complete(prompt, **fields)) for prompt in prompts]
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"prompt": "x", "n": 32, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        body |= {"stream_options": options, "return_token_ids": True}
        with socket.socket() as slow, concurrent.futures.ThreadPoolExecutor(63) as pool:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.settimeout(30)
            slow.connect(worker.address)
            slow.sendall(http_request("POST", "/v1/completions", json.dumps(body).encode()))
            data = slow.recv(1)
            streams = [pool.submit(worker.complete, p, stream=True, **fields) for p in prompts]
            for _ in concurrent.futures.as_completed(streams):
                with contextlib.suppress(ConnectionResetError):
                    data += slow.recv(1)
            assert [joined(stream.result()) for stream in streams] == expected
            assert b"HTTP/1.1 200 OK".startswith(data[:15])
            wait_for(lambda: worker.health()["in_system"] == 0, 10, lambda: str(worker.health()))
            size = len(data)
            with contextlib.suppress(ConnectionResetError):
                while part := slow.recv(1 << 20):
                    size += len(part)
            assert size < 12 << 20, "the answer would have 32 x 2000 events of 300 bytes"
        wait_until_free(worker)
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()
