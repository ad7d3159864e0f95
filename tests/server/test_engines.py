"""Two engines behind one front end: `--data-parallel-size 2`.

The tests of other files that matter here run again on such a server: what is imported below finds
this file's fixtures in the place of its own.
"""

import concurrent.futures
import json
import re
import signal

import pytest

import ingle
from security.test_late import Traced
from server import test_auth, test_chat, test_embeddings, test_life, test_openai_client
from server import test_streams as streams
from server import test_structured as structured
from server.test_life import LONG, read_to_end, send
from server.worker import TINY, Worker, wait_for, whole

test_openai_chat = test_openai_client.test_chat_plain_and_streamed
test_openai_stream = test_openai_client.test_completion_plain_and_streamed
client = test_openai_client.client
test_template_is_the_models = test_chat.test_template_is_the_models
test_n_choices_keep_their_index = streams.test_n_choices_keep_their_index
test_frames_stay_whole = streams.test_frames_stay_whole_when_many_streams_run_at_once
test_joined_deltas_equal_the_plain_text = streams.test_joined_deltas_equal_the_plain_text
ask = streams.ask
test_streamed_json_is_the_same_json = structured.test_streamed_json_is_the_same_json
test_alone_and_beside_others_the_same_json = structured.test_alone_and_beside_others_the_same_json
test_vectors = test_embeddings.test_vectors_have_length_1_and_depend_on_the_text_alone
test_neighbours_do_not_change_an_answer = test_life.test_neighbours_do_not_change_an_answer
test_a_disconnect_frees_everything_at_once = test_life.test_a_disconnect_frees_everything_at_once
test_a_disconnect_in_a_stream_aborts_it = (
    test_life.test_a_disconnect_in_the_middle_of_a_stream_aborts_it
)
test_cold_and_warm_answers_are_equal = test_life.test_cold_and_warm_answers_are_equal
test_a_salt_separates_cached_prefixes = test_life.test_a_salt_separates_cached_prefixes
test_a_disconnect_keeps_the_cached_prefix = test_life.test_a_disconnect_keeps_the_cached_prefix
test_full_queue_is_429_with_retry_after = test_life.test_full_queue_is_429_with_retry_after
TWO = ("--data-parallel-size", "2")


@pytest.fixture(scope="module")
def two_on_the_cpu():
    with Worker(
        "--device", "cpu", "--max-num-seqs", "16", "--max-num-batched-tokens", "64", *TWO
    ) as w:
        yield w
        assert w.stop() == 0, w.errors()
        assert "Traceback" not in w.errors(), w.errors()


@pytest.fixture
def cpu(two_on_the_cpu):
    """Two tiny Llamas on the CPU."""
    yield two_on_the_cpu
    two_on_the_cpu.wait_until_idle()


@pytest.fixture
def worker(cpu):
    return cpu


@pytest.fixture(scope="module")
def two_slow():
    """Two sim devices with room for one request each, and four waiting."""
    with Worker("--device", "sim", "--max-num-seqs", "1", "--max-queue", "4", *TWO) as w:
        yield w
        assert w.stop() == 0, w.errors()


@pytest.fixture
def slow(two_slow):
    yield two_slow
    two_slow.wait_until_idle()


def of_engines(worker, name):
    """A metric's value of each engine."""
    text = worker.get("/metrics").body.decode()
    found = re.findall(rf'^{re.escape(name)}{{engine="(\d+)"[^}}]*}} (\S+)$', text, re.M)
    assert [number for number, _ in found] == ["0", "1"], found
    return [float(value) for _, value in found]


def test_both_engines_work_and_give_the_answers_of_one(cpu, cpu_worker):
    prompts = [f"{i} The quick brown fox" for i in range(12)]
    before = of_engines(cpu, "vllm:generation_tokens_total")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda prompt: cpu.complete(prompt, max_tokens=40), prompts))
    after = of_engines(cpu, "vllm:generation_tokens_total")
    assert all(late > early for early, late in zip(before, after, strict=True)), (before, after)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert whole(answer) == whole(cpu_worker.complete(prompt, max_tokens=40))


def test_turns_of_conversations_find_their_prefixes(cpu):
    """One request at a time: under load the queues count too, as the tests of the router show."""
    talks = [[] for _ in range(6)]
    could = found = 0
    for turn in range(4):
        for number, messages in enumerate(talks):
            messages.append({"role": "user", "content": f"{number} and {turn} " * 40})
            usage = cpu.chat(messages, max_tokens=24, ignore_eos=True)["usage"]
            messages.append({"role": "assistant", "content": "yes"})
            found += usage["prompt_tokens_details"]["cached_tokens"]
            if turn < 3:
                could += usage["prompt_tokens"]
    # A block is found once it is full.
    assert found >= 0.9 * could, (found, could)


@pytest.mark.parametrize("name", ["one", "two", "\xff\xfe", "x" * 4000])
def test_a_session_stays_on_its_engine(cpu, name):
    before = of_engines(cpu, "vllm:generation_tokens_total")
    for i in range(4):
        body = {
            "prompt": [40 + i] * 40,
            "max_tokens": 5,
            "ignore_eos": True,
            "cache_salt": name[:9],
        }
        if name == "\xff\xfe":
            body["cache_salt"] = "odd"
        reply = cpu.post("/v1/completions", body, headers={"X-Session-Affinity": name})
        assert reply.status == 200, reply.body
    cpu.wait_until_idle()
    after = of_engines(cpu, "vllm:generation_tokens_total")
    assert sorted(late - early for early, late in zip(before, after, strict=True)) == [0, 20]


def test_the_start_prints_the_number_of_engines(cpu):
    assert re.search(r"^device +cpu \(.*\) x 2 engines;", cpu.summary, re.M)
    assert "16 requests and 64 tokens a step on each of 2 engines" in cpu.summary
    assert cpu.health()["capacity"] == 2 * 16 + 2 * 64


def test_health_and_metrics_cover_each_engine(slow):
    running = [send(slow) for _ in range(2)]
    wait_for(lambda: slow.health()["running"] == 2, 5, lambda: str(slow.health()))
    health = slow.health()
    assert [engine["running"] for engine in health["engines"]] == [1, 1]
    assert [engine["status"] for engine in health["engines"]] == ["ok", "ok"]
    assert of_engines(slow, "vllm:num_requests_running") == [1, 1]
    waiting = [send(slow) for _ in range(2)]
    wait_for(lambda: slow.health()["waiting"] == 2, 5, lambda: str(slow.health()))
    assert [engine["in_system"] for engine in slow.health()["engines"]] == [2, 2]
    for connection in [*running, *waiting]:
        connection.close()


def test_one_engine_that_hangs_shows():
    with Worker("--device", "sim", "--sim-speed", "0.002", "--health-stall-s", "1", *TWO) as w:
        connection = send(w, max_tokens=2)
        wait_for(lambda: w.get("/health").status == 503, 10, lambda: str(w.health()))
        health = w.health()
        assert health["status"] == "stuck"
        assert sorted(engine["status"] for engine in health["engines"]) == ["ok", "stuck"]
        assert w.get("/ready").status == 503
        connection.close()
        w.wait_until_idle()
        assert w.stop() == 0


def test_sigterm_lets_the_requests_of_all_engines_end():
    with Worker("--device", "sim", *TWO) as worker:
        stream = worker.open_stream(**LONG | {"max_tokens": 200})
        plain = [send(worker, max_tokens=200) for _ in range(3)]
        wait_for(lambda: worker.health()["running"] == 4, 5, lambda: str(worker.health()))
        worker.process.send_signal(signal.SIGTERM)
        wait_for(lambda: worker.get("/ready").status == 503, 5, lambda: "still ready")
        assert [engine["status"] for engine in worker.health()["engines"]] == ["draining"] * 2
        assert worker.post("/v1/completions", LONG).status == 503
        assert read_to_end(stream).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        for connection in plain:
            head, _, body = read_to_end(connection).partition(b"\r\n\r\n")
            assert b"200 OK" in head
            assert json.loads(body)["usage"]["completion_tokens"] == 200
        assert worker.wait() == 0
        assert "Traceback" not in worker.errors(), worker.errors()


def test_at_the_shutdown_deadline_every_stream_gets_an_error():
    with Worker("--device", "sim", "--shutdown-timeout", "0.2", *TWO) as worker:
        connections = [worker.open_stream(**LONG) for _ in range(4)]
        worker.process.send_signal(signal.SIGTERM)
        for connection in connections:
            data = read_to_end(connection)
            assert b'data: {"error":{"message":"the server is shutting down"' in data
            assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert worker.wait() == 0


def test_tenants_have_their_share_of_both_engines(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("hog:key-h\npolite:key-p\nops:key-o admin\n")
    keys.chmod(0o600)
    options = ("--max-num-seqs", "1", "--max-queue", "2", "--api-key-file", keys)
    with Worker("--device", "sim", "--sim-speed", "5", *options, *TWO) as worker:
        assert worker.get("/v1/models").status == 401
        hog, polite = ({"Authorization": f"Bearer key-{name}"} for name in "hp")

        def count():
            return worker.get("/health", headers=hog).json["in_system"]

        connections = []
        for _ in range(4):
            body = json.dumps(LONG).encode()
            connection = worker.connect()
            connection.sendall(
                test_auth.http_request(
                    "POST", "/v1/completions", body, Authorization="Bearer key-h"
                )
            )
            connections.append(connection)
        wait_for(lambda: count() == 4, 5, lambda: str(count()))
        assert worker.post("/v1/completions", LONG, headers=hog).status == 429
        reply = worker.post("/v1/completions", LONG | {"max_tokens": 4}, headers=polite)
        assert reply.status == 200
        for connection in connections:
            connection.close()
        wait_for(lambda: count() == 0, 5, lambda: str(count()))
        assert worker.stop() == 0


def test_the_python_api_has_several_engines_too():
    greedy = ingle.SamplingParams(temperature=0, max_tokens=12)
    prompts = [f"{i} times" for i in range(8)]
    with ingle.Engine(str(TINY), device="cpu", data_parallel_size=2) as engine:
        assert engine.info["num_engines"] == 2
        both = [output.outputs[0].text for output in engine.generate(prompts, greedy)]
        text = engine.core.metrics().decode()
    steps = re.findall(r"^ingle:steps_total{.*} (\d+)$", text, re.M)
    assert len(steps) == 2
    assert all(int(count) > 0 for count in steps)
    with ingle.Engine(str(TINY), device="cpu") as engine:
        assert engine.info["num_engines"] == 1
        one = [output.outputs[0].text for output in engine.generate(prompts, greedy)]
    assert both == one


def test_two_engines_need_no_system_call_beyond_the_list():
    with Traced("--device", "cpu", *TWO) as worker:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(worker.complete, f"{i}", stream=bool(i % 2)) for i in range(8)]
            jobs += [pool.submit(worker.chat, response_format={"type": "json_object"})]
            [job.result() for job in jobs]
        assert min(of_engines(worker, "ingle:steps_total")) > 0
        assert worker.stop() == 0
        calls = [line for line in worker.errors().splitlines() if line.startswith("trace: ")]
    assert calls == []


def test_settings_that_several_engines_cannot_have_are_refused(tmp_path):
    with pytest.raises(AssertionError, match="no start") as error:
        Worker("--device", "cpu", "--cpu-threads", "1", *TWO)
    assert "cpu-threads: 1 threads for 2 engines (--data-parallel-size)" in str(error.value)
    with pytest.raises(AssertionError, match="no start") as error:
        Worker("--device", "cpu", "--data-parallel-size", "0")
    assert "--data-parallel-size" in str(error.value)
