"""More models than fit: idle ones make room for each other and return with the next request."""

import concurrent.futures
import re

import pytest

import ingle
from server.test_several_models import Several
from server.test_sleep import AdminSocket
from server.worker import MODELS, TINY, wait_for

SOURCES = {
    "llama": TINY,
    "qwen": MODELS / "qwen3",
    "olmo": MODELS / "olmo2",
}
KV_BYTES = 1 << 20
FIELDS = {"prompt": "The quick brown fox", "max_tokens": 10, "logprobs": 2}


def flags(num_bytes):
    models = [part for name, source in SOURCES.items() for part in ("--model", f"{name}={source}")]
    sizes = ("--kv-cache-memory-bytes", KV_BYTES, "--device-memory-bytes", num_bytes)
    return (*models, "--device", "cpu", "--max-num-seqs", 4, *sizes)


@pytest.fixture(scope="module")
def all_fit(tmp_path_factory):
    """Answers where all models stay in memory, and what the largest takes."""
    place = tmp_path_factory.mktemp("fit") / "admin.sock"
    with Several(*flags(1 << 30), "--admin-uds", place) as worker:
        answers = {name: worker.complete(model=name, **FIELDS)["choices"] for name in SOURCES}
        models = AdminSocket(place).ask("GET", "/models")[1]["models"]
        assert {model["state"] for model in models} == {"awake"}
        assert worker.stop() == 0, worker.errors()
    return answers, max(model["bytes"] for model in models)


def test_answers_are_the_same_bits_before_and_after_a_swap(all_fit, tmp_path):
    answers, largest = all_fit
    place = tmp_path / "admin.sock"
    with Several(*flags(largest), "--admin-uds", place) as worker:
        assert "hardening   auto" in worker.summary
        admin = AdminSocket(place)
        for _ in range(3):
            for name, answer in answers.items():
                assert worker.complete(model=name, **FIELDS)["choices"] == answer
                states = {m["name"]: m["state"] for m in admin.ask("GET", "/models")[1]["models"]}
                assert states[name] == "awake"
                assert sum(state == "awake" for state in states.values()) == 1
        cards = {card["id"]: card["status"] for card in worker.get("/v1/models").json["data"]}
        assert cards == {"llama": "asleep", "qwen": "asleep", "olmo": "loaded"}
        health = worker.health()
        assert health["status"] == "ok"
        assert health["models"]["llama"]["memory"] == "asleep"
        assert worker.get("/ready").status == 200
        returns = re.findall(
            r'^ingle:model_returns_total\{.*model_name="(\w+)"\} (\d+)',
            worker.get("/metrics").body.decode(),
            re.M,
        )
        assert dict(returns) == {"llama": "2", "qwen": "3", "olmo": "3"}
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors()


def test_requests_of_all_models_at_once_are_all_answered(all_fit):
    answers, largest = all_fit
    with Several(*flags(largest)) as worker, concurrent.futures.ThreadPoolExecutor(12) as pool:
        names = [name for name in SOURCES for _ in range(4)]
        replies = list(pool.map(lambda name: worker.complete(model=name, **FIELDS), names))
        assert [reply["choices"] for reply in replies] == [answers[name] for name in names]
        assert worker.stop() == 0, worker.errors()


def test_operators_send_models_away_call_and_pin_them(all_fit, tmp_path):
    _, largest = all_fit
    place = tmp_path / "admin.sock"
    with Several(*flags(3 * largest), "--admin-uds", place) as worker:
        admin = AdminSocket(place)

        def state(name):
            models = admin.ask("GET", "/models")[1]["models"]
            return next(model["state"] for model in models if model["name"] == name)

        status, body = admin.ask("POST", "/models/qwen/sleep")
        assert (status, body["name"]) == (200, "qwen")
        wait_for(lambda: state("qwen") == "asleep", 10, lambda: state("qwen"))
        assert admin.ask("POST", "/models/qwen/sleep")[0] == 409
        assert admin.ask("POST", "/models/qwen/wake")[0] == 200
        wait_for(lambda: state("qwen") == "awake", 10, lambda: state("qwen"))
        assert admin.ask("POST", "/models/qwen/unload")[0] == 200
        wait_for(lambda: state("qwen") == "asleep", 10, lambda: state("qwen"))
        assert admin.ask("POST", "/models/qwen/load")[0] == 200
        wait_for(lambda: state("qwen") == "awake", 10, lambda: state("qwen"))
        assert admin.ask("POST", "/models/olmo/pin")[1]["pinned"] is True
        status, body = admin.ask("POST", "/models/olmo/sleep")
        assert (status, body["error"]["message"]) == (409, "the model 'olmo' is pinned")
        assert admin.ask("POST", "/models/olmo/unpin")[1]["pinned"] is False
        assert admin.ask("POST", "/models/olmo/sleep")[0] == 200
        worker.complete(model="olmo")
        assert admin.ask("POST", "/models/gpt-5/sleep")[0] == 404
        assert admin.ask("POST", "/models/qwen/explode")[0] == 404
        assert worker.get("/models").status == 404, "the public address has no such route"
        assert worker.stop() == 0, worker.errors()


def test_pins_of_models_that_do_not_fit_together_are_refused(all_fit, tmp_path):
    _, largest = all_fit
    place = tmp_path / "admin.sock"
    with Several(*flags(largest), "--admin-uds", place) as worker:
        admin = AdminSocket(place)
        assert admin.ask("POST", "/models/llama/pin")[0] == 200
        status, body = admin.ask("POST", "/models/qwen/pin")
        assert (status, body["error"]["code"]) == (409, "conflict")
        assert "the model 'qwen' takes " in body["error"]["message"]
        assert " bytes, and other pinned models leave " in body["error"]["message"]
        states = admin.ask("GET", "/models")[1]["models"]
        assert {model["name"] for model in states if model["pinned"]} == {"llama"}
        assert admin.ask("POST", "/models/llama/unpin")[0] == 200
        assert admin.ask("POST", "/models/qwen/pin")[0] == 200
        worker.complete(model="qwen", max_tokens=1)
        assert worker.stop() == 0, worker.errors()


def test_a_sleep_of_all_models_is_refused_before_any_request_is(all_fit, tmp_path):
    _, largest = all_fit
    place = tmp_path / "admin.sock"
    with Several(*flags(largest), "--admin-uds", place) as worker:
        admin = AdminSocket(place)
        stream = worker.open_stream(model="llama", max_tokens=200)
        status, body = admin.ask("POST", "/sleep?timeout_s=3600")
        assert status == 409, "it does not wait for the stream"
        assert "POST /models/NAME/sleep sends one away" in body["error"]["message"]
        assert admin.ask("GET", "/is_sleeping") == (200, {"is_sleeping": False})
        assert admin.ask("POST", "/wake_up") == (200, {"is_sleeping": False}), "it is awake"
        stream.close()
        assert worker.get("/ready").status == 200
        worker.complete(model="qwen")
        for path in ("/models/qwen/sleep?level=2", "/models/qwen/wake?x=1"):
            status, body = admin.ask("POST", path)
            assert (status, body["error"]["param"]) == (400, path.partition("?")[2][:-2])
        assert worker.stop() == 0, worker.errors()


def test_without_a_limit_there_is_nothing_to_send_away(tmp_path):
    place = tmp_path / "admin.sock"
    with Several("--model", f"a={TINY}", "--device", "sim", "--admin-uds", place) as worker:
        status, body = AdminSocket(place).ask("POST", "/models/a/sleep")
        assert (status, body["error"]["code"]) == (501, "not_supported")
        assert worker.stop() == 0, worker.errors()


def test_models_swap_in_python_too(all_fit):
    answers, largest = all_fit
    params = ingle.SamplingParams(max_tokens=10, temperature=0)
    settings = {"device": "cpu", "max_num_seqs": 4, "kv_cache_memory_bytes": KV_BYTES}
    with ingle.Engines(
        {name: str(source) for name, source in SOURCES.items()},
        device_memory_bytes=largest,
        **settings,
    ) as engines:
        for name in (*SOURCES, *SOURCES):
            [output] = engines.generate(FIELDS["prompt"], params, model=name)
            assert output.outputs[0].text == answers[name][0]["text"]


def test_a_model_that_can_never_fit_stops_the_start():
    with pytest.raises(ingle.ModelError, match=r"the model a takes \d+ bytes with its KV pool"):
        ingle.Engines({"a": str(TINY), "b": str(TINY)}, device="cpu", device_memory_bytes=1000)
