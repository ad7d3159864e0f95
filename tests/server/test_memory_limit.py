"""A server whose control group leaves it little memory: it refuses what does not fit, and lives."""

import collections
import contextlib
import json
import resource
import subprocess
import sys
import threading

import pytest

from server.memory_group import LimitedWorker, memory_group
from server.worker import TINY, http_request

MIB = 1 << 20
ABOVE_IDLE = 64 * MIB
SIM = ("--device", "sim", "--sim-speed", "inf")
PROMPT_BYTES = 2 * MIB - 1000
"""About the longest prompt that the demo model's context allows."""
ONE_WORD = {"prompt": "a" * PROMPT_BYTES, "max_tokens": 1}
"""The prompt that takes most memory while it becomes tokens: one word."""


@pytest.fixture
def group():
    with memory_group() as made:
        if made is None:
            pytest.skip("this user may not make a memory control group")
        yield made


def from_many_clients(num_clients, act):
    """What `act` gives, and the errors it raises, each with its count."""
    counts = collections.Counter()

    def client(number):
        for turn in range(3):
            try:
                counts[act(100 * number + turn)] += 1
            except (OSError, AssertionError) as error:
                counts[type(error).__name__] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def chunked(worker, body):
    """A body of unknown length."""
    head = http_request(
        "POST", "/tokenize", Transfer_Encoding="chunked", Content_Type="application/json"
    )
    pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]
    data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return int(worker.raw(head + data + b"0\r\n\r\n", until_close=False).split(b" ")[1])


def acts(worker):
    """Ways to take memory, each with the statuses that it may end with."""
    one_word = json.dumps(ONE_WORD).encode()
    ids = json.dumps({"prompt": [7] * 1_000_000, "max_tokens": 1}).encode()
    scores = {"prompt": "word " * 4000, "max_tokens": 1, "prompt_logprobs": 20}
    message = [{"role": "user", "content": "b" * PROMPT_BYTES}]
    yield "one word", {400, 503}, lambda _: worker.post("/v1/completions", one_word).status
    yield "ids", {400, 503}, lambda _: worker.post("/v1/completions", ids).status
    yield "chunks", {400, 503}, lambda _: chunked(worker, one_word)
    chat = {"messages": message, "max_tokens": 1}
    yield "chat", {400, 503}, lambda _: worker.post("/v1/chat/completions", chat).status
    yield (
        "scores",
        {200, 429, 503},
        lambda n: (
            worker.post("/v1/completions", scores | {"prompt": f"{n} " + scores["prompt"]}).status
        ),
    )


def test_a_server_64_mib_above_idle_refuses_and_is_not_killed(group):
    with LimitedWorker(group, *SIM, model="demo") as worker:
        worker.complete(max_tokens=2)
        group.limit(group.used() + ABOVE_IDLE)
        for name, allowed, act in acts(worker):
            counts = from_many_clients(8, act)
            # A connection that is refused is reset.
            assert set(counts) <= allowed | {"ConnectionResetError"}, (name, counts)
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(worker.connect()) for _ in range(1000)]
            for number, connection in enumerate(connections):
                with contextlib.suppress(OSError):
                    connection.sendall(b"POST / HTTP/1.1\r\nX-%d: " % number + b"x" * 8000)
        # What was refused once is refused no longer than the lack lasts.
        assert worker.complete(max_tokens=2)["choices"][0]["finish_reason"] == "length"
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()
    assert group.kills() == 0


def test_a_server_with_memory_takes_what_the_other_refuses(group):
    """The negative control: without a limit nothing of it is refused for want of memory."""
    with LimitedWorker(group, *SIM, model="demo") as worker:
        for name, _, act in acts(worker):
            counts = collections.Counter([act(0)])
            assert 503 not in counts, (name, counts)
        assert worker.stop() == 0, worker.errors()


def test_a_model_that_does_not_fit_the_group_is_refused_with_the_numbers(group):
    group.limit(110 * MIB)
    text = failed_start(LimitedWorker, group, "--device", "cpu", model="demo")
    assert "the model's weights take" in text
    assert "the control group /" in text
    assert f"{group.folder.name} leaves" in text
    assert group.kills() == 0


def test_the_pool_is_sized_by_the_group(group):
    group.limit(600 * MIB)
    with LimitedWorker(group, "--device", "cpu", model="demo") as worker:
        worker.complete(max_tokens=2)
        assert worker.stop() == 0, worker.errors()
    assert group.kills() == 0


@pytest.mark.parametrize("mib", [400, 1000])
def test_a_limit_on_addresses_ends_the_start_with_a_reason(mib):
    command = [sys.executable, "-m", "ingle", "serve", str(TINY), "--port", "0"]

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))

    done = subprocess.run(
        [*command, "--device", "cpu"], capture_output=True, text=True, timeout=60, preexec_fn=limit
    )
    # Which is met first, the model's memory or a thread's, hangs on where the heaps lie.
    assert done.returncode in (2, 3), done
    assert "address" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def failed_start(kind, *arguments, **options):
    with pytest.raises(AssertionError, match="no start") as failure:
        kind(*arguments, **options).__exit__()
    return str(failure.value)
