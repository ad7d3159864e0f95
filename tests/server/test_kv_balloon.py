"""KV pools that grow into what other models leave, and give it back, behind the lock-down."""

import concurrent.futures
import re

import pytest

import ingle
from server.test_several_models import Several
from server.test_sleep import AdminSocket
from server.worker import MODELS, TINY, wait_for

SOURCES = {"llama": TINY, "qwen": MODELS / "qwen3"}
KV_BYTES = 1 << 20
PROMPT = "The quick brown fox jumps over the lazy dog. " * 8
FIELDS = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "logprobs": 2}


def flags(num_bytes, *more):
    models = [part for name, source in SOURCES.items() for part in ("--model", f"{name}={source}")]
    sizes = ("--kv-cache-memory-bytes", KV_BYTES, "--device-memory-bytes", num_bytes)
    return (*models, "--device", "cpu", "--max-num-seqs", 16, *sizes, *more)


def blocks(worker):
    rows = re.findall(
        r'^ingle:kv_cache_blocks\{[^}]*model_name="(\w+)"[^}]*\} (\d+)',
        worker.get("/metrics").body.decode(),
        re.M,
    )
    return {name: int(value) for name, value in rows}


def ask_together(worker, name, count):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        replies = list(pool.map(lambda _: worker.complete(model=name, **FIELDS), range(count)))
    return [reply["choices"] for reply in replies]


def test_a_busy_model_uses_what_an_idle_one_leaves_and_gives_it_back(tmp_path):
    place = tmp_path / "admin.sock"
    with Several(*flags(1 << 30), "--admin-uds", place) as worker:
        alone = {name: worker.complete(model=name, **FIELDS)["choices"] for name in SOURCES}
        share = blocks(worker)
        models = AdminSocket(place).ask("GET", "/models")[1]["models"]
        assert worker.stop() == 0, worker.errors()
    # Weights, both shares, and half a share that is nobody's.
    num_bytes = sum(model["bytes"] for model in models) + KV_BYTES // 2
    most = ("--kv-cache-max-memory-bytes", 8 * KV_BYTES)
    with Several(*flags(num_bytes), *most, "--no-enable-prefix-caching") as worker:
        assert "hardening   auto" in worker.summary
        other = dict(zip(SOURCES, reversed(SOURCES), strict=True))

        def lent(name):
            answers = ask_together(worker, name, 12)
            assert answers == [alone[name]] * 12
            now = blocks(worker)
            return now[name] > share[name] and now[other[name]] < share[other[name]]

        for name in (*SOURCES, "llama"):
            wait_for(lambda name=name: lent(name), 60, lambda: blocks(worker))
        given = re.findall(
            r"^ingle:kv_give_back_seconds_count\{.*\} (\d+)$",
            worker.get("/metrics").body.decode(),
            re.M,
        )
        assert len(given) == 2
        assert "0" not in given, given
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors()


@pytest.mark.parametrize(("device", "share"), [("cpu", 1 << 20), ("sim", 1 << 27)])
def test_a_largest_size_beyond_all_use_takes_no_memory(device, share):
    with ingle.Engines(
        {"a": str(TINY), "b": str(TINY)},
        device=device,
        device_memory_bytes=2**63 - 1,
        kv_cache_memory_bytes=share,
        kv_cache_max_memory_bytes=2**63 - 1,
    ) as engines:
        prompts = [[5 + number] * 60 for number in range(40)]
        params = ingle.SamplingParams(max_tokens=4, ignore_eos=True)
        outputs = engines.generate(prompts, params, model="a")
        assert [len(output.outputs[0].token_ids) for output in outputs] == [4] * 40


def test_a_pool_that_cannot_grow_stops_the_start():
    model = ("--model", f"a={TINY}", "--model", f"b={TINY}", "--device", "cpu")
    with pytest.raises(
        AssertionError, match="--kv-cache-max-memory-bytes: the KV pool can only grow"
    ):
        Several(*model, "--kv-cache-max-memory-bytes", 1 << 30)
