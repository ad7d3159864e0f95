"""Models whose weights are read with the first request for them: `load = "on-request"`."""

import os
import re

import pytest

import ingle
from server.test_several_models import Several
from server.test_sleep import AdminSocket
from server.worker import MODELS, TINY, wait_for

OTHER = MODELS / "qwen3"
KV_BYTES = 1 << 20
FIELDS = {"prompt": "The quick brown fox", "max_tokens": 10, "logprobs": 2}


@pytest.fixture
def config(tmp_path):
    """Writes a settings file with a model that is there at the start and one that is not."""

    def write(source=OTHER, num_bytes=1 << 30, device="cpu", more=""):
        file = tmp_path / "ingle.toml"
        file.write_text(
            f"""
            device = "{device}"
            max-num-seqs = 4
            kv-cache-memory-bytes = {KV_BYTES if device == "cpu" else 1 << 27}
            device-memory-bytes = {num_bytes}
            admin-uds = "{tmp_path / "admin.sock"}"
            [models.here]
            source = "{TINY}"
            [models.later]
            source = "{source}"
            load = "on-request"
            {more}
            """
        )
        return file, AdminSocket(tmp_path / "admin.sock")

    return write


def card(admin, name="later"):
    models = admin.ask("GET", "/models")[1]["models"]
    return next(model for model in models if model["name"] == name)


def returns(worker):
    text = worker.get("/metrics").body.decode()
    found = re.search(r'^ingle:model_returns_total\{.*model_name="later"\} (\d+)', text, re.M)
    return int(found[1])


def test_the_first_request_reads_the_weights_of_a_locked_server(config):
    file, admin = config()
    with Several("--model", f"later={OTHER}", "--device", "cpu", "--max-num-seqs", 4) as alone:
        answer = alone.complete(model="later", **FIELDS)["choices"]
    with Several("--config", file) as worker:
        assert worker.health()["hardening"]["mode"] == "auto"
        assert worker.summary.count("the weights are read with the first request") == 1
        status = {each["id"]: each["status"] for each in worker.get("/v1/models").json["data"]}
        assert status == {"here": "loaded", "later": "asleep"}
        assert (card(admin)["state"], returns(worker)) == ("asleep", 0)
        assert worker.get("/ready").status == 200
        assert worker.complete(model="later", **FIELDS)["choices"] == answer
        assert (card(admin)["state"], returns(worker)) == ("awake", 1)
        assert admin.ask("POST", "/models/later/unload")[0] == 200
        wait_for(lambda: card(admin)["state"] == "asleep", 60, lambda: card(admin))
        assert worker.complete(model="later", **FIELDS)["choices"] == answer
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors()


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_an_operator_loads_it_before_anyone_asks(config, device):
    file, admin = config(device=device)
    with Several("--config", file) as worker:
        assert admin.ask("POST", "/models/later/unload")[0] == 409, "it is not there"
        assert admin.ask("POST", "/models/later/load")[0] == 200
        wait_for(lambda: card(admin)["state"] == "awake", 60, lambda: card(admin))
        worker.complete(model="later", max_tokens=1)
        assert returns(worker) == 1
        assert worker.stop() == 0, worker.errors()


def test_what_cannot_be_read_is_a_503_that_says_so_and_is_tried_again(config, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in OTHER.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = folder / "model.safetensors"
    content, status = weights.read_bytes(), weights.stat()
    times = (status.st_atime_ns, status.st_mtime_ns)
    file, admin = config(folder)
    with Several("--config", file) as worker:
        with open(weights, "r+b") as cut:
            cut.truncate(len(content) // 2)
        refused = worker.post("/v1/completions", {"model": "later", "prompt": "x"})
        assert refused.status == 503
        assert "could not return into memory" in refused.json["error"]["message"]
        assert "was written to since it was opened; restart" in card(admin)["failure"]
        assert admin.ask("POST", "/models/later/load")[0] == 200
        worker.complete(model="here", max_tokens=1)
        with open(weights, "r+b") as whole:
            whole.write(content)
        os.utime(weights, ns=times)  # As if nobody had written.
        wait_for(lambda: card(admin)["state"] == "asleep", 60, lambda: card(admin))
        worker.complete(model="later", max_tokens=1)
        assert "failure" not in card(admin)
        assert worker.stop() == 0, worker.errors()


def test_it_makes_room_like_any_other(config):
    file, admin = config()
    with Several("--config", file) as worker:
        largest = max(card(admin, name)["bytes"] for name in ("here", "later"))
        assert worker.stop() == 0, worker.errors()
    file, admin = config(num_bytes=largest)
    with Several("--config", file) as worker:
        for _ in range(2):
            for name, other in (("later", "here"), ("here", "later")):
                worker.complete(model=name, max_tokens=1)
                states = (card(admin, name)["state"], card(admin, other)["state"])
                assert states == ("awake", "asleep")
        assert worker.stop() == 0, worker.errors()


def test_it_works_in_python_too():
    params = ingle.SamplingParams(max_tokens=5, temperature=0)
    models = {"a": {"source": str(TINY), "load": "on-request"}}
    settings = {"device": "cpu", "kv_cache_memory_bytes": KV_BYTES}
    with ingle.Engine(str(TINY), **settings) as engine:
        [expected] = engine.generate("Hello", params)
    with ingle.Engines(models, device_memory_bytes=1 << 30, **settings) as engines:
        assert engines["a"].core.memory_state()[0] == "asleep"
        [output] = engines.generate("Hello", params, model="a")
        assert output.outputs == expected.outputs


def test_a_gpu_refuses_it_by_name():
    models = {"a": {"source": str(TINY), "load": "on-request"}}
    with pytest.raises(ingle.ModelError, match="load: on-request: only the cpu or sim device"):
        ingle.Engines(models, device_memory_bytes=1 << 30, device="cuda")
