"""KV events as a router outside sees them: an index built from them must agree with the cache."""

import contextlib
import json
import random

import pytest

import ingle
from ingle.errors import ConfigError, ModelError
from server.router_index import RouterIndex
from server.test_several_models import Several
from server.test_sleep import AdminSocket
from server.worker import MODELS, TINY, Worker

CONFIG = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://127.0.0.1:0",
    "replay_endpoint": "tcp://127.0.0.1:0",
    "topic": "kv@pod@model",
}
NUM_BLOCKS = 10_000


class Driver:
    """Requests one after the other, and what the router says of each before it is sent."""

    def __init__(self, engine, index):
        self.engine, self.index = engine, index
        self.random = random.Random(16)
        self.histories = []
        self.num_marks = 0

    def prompt(self):
        """A turn of an old conversation, or the first one of a new one."""
        if self.histories and self.random.random() < 0.6:
            history = self.random.choice(self.histories[-12:])
        else:
            history = [7] * self.random.choice([0, 40])
            self.histories.append(history)
        history += [self.random.randrange(3, 200) for _ in range(self.random.randrange(1, 120))]
        if len(history) > 380:
            self.histories.remove(history)
        return list(history[:400])

    def run(self):
        prompt = self.prompt()
        salt = self.random.choice([None, None, None, "other"])
        params = ingle.SamplingParams(max_tokens=9, ignore_eos=True, cache_salt=salt)
        predicted = self.index.num_cached(prompt, salt) if self.index.block_size else 0
        [output] = self.engine.generate(prompt, params)
        assert output.usage.cached_tokens == predicted


def published(engine):
    """Batches that the worker has numbered so far."""
    text = engine.core.metrics().decode()
    return int(text.split("ingle:kv_events_batches_total ")[-1].split()[0])


def settle(driver):
    """Takes all events of what has ended; a mark in the cache says which is the last."""
    index = driver.index
    driver.num_marks += 1
    mark = [200 + driver.num_marks % 180, 200 + driver.num_marks // 180] * 4
    driver.engine.generate(mark, ingle.SamplingParams(max_tokens=1))
    index.take_until(lambda: index.block_size and index.num_cached(mark))


def test_an_index_built_from_events_agrees_with_the_cache_for_10_000_blocks():
    with ingle.Engine(
        str(TINY),
        device="sim",
        sim_speed="inf",
        block_size=4,
        # The simulated model has half a MiB a block.
        kv_cache_memory_bytes=600 << 19,
        kv_events_config=json.dumps(CONFIG),
    ) as engine:
        where, replays = engine.info["kv_events"]
        with RouterIndex(where, replays, b"kv@pod") as index:
            driver = Driver(engine, index)
            while index.num_stored < NUM_BLOCKS:
                driver.run()
                settle(driver)
                if driver.random.random() < 0.02:
                    engine.core.reset_prefix_cache()
                    settle(driver)
                # Batches that never arrive; the next one shows the gap.
                if driver.random.random() < 0.05:
                    before = published(engine)
                    driver.engine.generate(driver.prompt(), ingle.SamplingParams(max_tokens=9))
                    index.take(100, drop=range(before, before + 1))
                    settle(driver)
            assert index.num_replayed > 10
            assert index.num_removed > NUM_BLOCKS / 4
            assert index.num_cleared > 0
            with RouterIndex(where, replays) as late:
                late.replay()
                assert late.contents == index.contents
                assert late.next_sequence == index.next_sequence


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_a_locked_down_worker_publishes_and_replays(encoding):
    events = CONFIG | {"topic": "", "encoding": encoding}
    array_like = encoding == "array"
    with Worker("--kv-events-config", json.dumps(events), "--block-size", 4) as worker:
        assert worker.health()["hardening"]["mode"] == "auto"
        where, replays = [
            line.split()[-1] for line in worker.summary.splitlines() if "kv events" in line
        ]
        prompt = list(range(10, 30))
        with (
            RouterIndex(where, replays, array_like=array_like) as index,
            RouterIndex(where, replays, array_like=array_like) as late,
        ):
            worker.complete(prompt)
            index.take_until(lambda: index.block_size and index.num_cached(prompt) == 16)
            late.replay()
            assert late.contents == index.contents
            assert worker.metric("ingle:kv_events_subscribers") == 4
        assert worker.stop() == 0, worker.errors()


def test_each_engine_publishes_its_own_cache_on_its_own_port():
    with ingle.Engine(
        str(TINY),
        device="sim",
        sim_speed="inf",
        data_parallel_size=2,
        block_size=4,
        kv_events_config=json.dumps(CONFIG | {"replay_endpoint": None}),
    ) as engine:
        first, second = engine.info["kv_events"]
        with RouterIndex(first) as one, RouterIndex(second) as two:
            prompts = [[100 + n, 7, 7, 7] * 4 for n in range(8)]
            engine.generate(prompts, ingle.SamplingParams(max_tokens=1))

            def known():
                """How many of the prompts each engine has."""
                return [
                    sum(bool(each.block_size and each.num_cached(p)) for p in prompts)
                    for each in (one, two)
                ]

            while sum(known()) < len(prompts):
                one.take(10)
                two.take(10)
            assert min(known()) > 0
            assert sum(known()) == len(prompts)
            assert (one.rank, two.rank) == (0, 1)


def test_each_model_of_a_locked_worker_publishes_its_own_cache_on_its_own_endpoint(tmp_path):
    file, place = tmp_path / "ingle.toml", tmp_path / "admin.sock"
    tables = [
        f"""
        [models.{name}]
        source = "{source}"
        block-size = 4
        kv-events-config = {{ enable_kv_cache_events = true, endpoint = "tcp://127.0.0.1:0",
            topic = "kv@pod@{name}" }}
        """.replace("\n            topic", " topic")
        for name, source in (("llama", TINY), ("qwen", MODELS / "qwen3"))
    ]
    head = 'device = "cpu"\ndevice-memory-bytes = 1000000000\nkv-cache-memory-bytes = 1048576\n'
    file.write_text(head + "".join(tables))
    with Several("--config", file, "--admin-uds", place) as worker:
        assert worker.health()["hardening"]["mode"] == "auto"
        places = [line.split()[-1] for line in worker.summary.splitlines() if "kv events" in line]
        prompts = {"llama": list(range(10, 30)), "qwen": list(range(40, 60))}
        subscribed = [(name, f"kv@pod@{name}".encode()) for name in prompts]
        with contextlib.ExitStack() as stack:
            indexes = {
                name: stack.enter_context(RouterIndex(where, None, topic))
                for (name, topic), where in zip(subscribed, places, strict=True)
            }
            for name, prompt in prompts.items():
                worker.complete(prompt, model=name)
            for name, index in indexes.items():
                own = prompts[name]
                index.take_until(lambda: index.block_size and index.num_cached(own) == 16)  # noqa: B023
                others = [prompt for other, prompt in prompts.items() if other != name]
                assert [index.num_cached(prompt) for prompt in others] == [0]
            assert AdminSocket(place).ask("POST", "/models/qwen/unload")[0] == 200
            gone = indexes["qwen"]
            gone.take_until(lambda: gone.num_cached(prompts["qwen"]) == 0)
            assert indexes["llama"].num_cached(prompts["llama"]) == 16
        assert worker.stop() == 0, worker.errors()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "kv_events_config: is not JSON"),
        ("[]", "kv_events_config: must be an object"),
        ({"endpont": "x"}, "kv_events_config: unknown field: endpont"),
        ({"endpoint": None}, r"kv_events_config: endpoint: must be tcp://HOST:PORT"),
        ({"endpoint": "ipc:///tmp/x"}, "endpoint: must be tcp://HOST:PORT, not 'ipc:///tmp/x'"),
        ({"endpoint": "tcp://127.0.0.1:70000"}, "endpoint: must be tcp://HOST:PORT"),
        ({"endpoint": "tcp://*:5557"}, "all addresses .*allow_wildcard"),
        ({"endpoint": "tcp://0.0.0.0:5557"}, "all addresses"),
        ({"endpoint": "tcp://[::]:5557"}, "all addresses"),
        ({"replay_endpoint": "tcp://*:5558"}, r"tcp://\*:5558 is on all addresses"),
        ({"hwm": 0}, "kv_events_config: hwm: must be a whole number from 1 to 1000000, not 0"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(config, message):
    text = config if isinstance(config, str) else json.dumps(CONFIG | config)
    with pytest.raises(ConfigError, match=message):
        ingle.Engine(str(TINY), device="sim", kv_events_config=text)


def test_a_wildcard_is_bound_if_it_is_asked_for():
    asked = CONFIG | {"endpoint": "tcp://*:0", "replay_endpoint": None, "allow_wildcard": True}
    settings = {"device": "sim", "kv_events_config": json.dumps(asked)}
    with ingle.Engine(str(TINY), **settings) as engine:
        [where] = engine.info["kv_events"]
        assert where.startswith(("tcp://0.0.0.0:", "tcp://[::]:"))


def test_a_model_without_a_prefix_cache_has_no_events():
    with pytest.raises(ConfigError, match="no events without prefix caching"):
        ingle.Engine(
            str(TINY),
            device="sim",
            enable_prefix_caching=False,
            kv_events_config=json.dumps(CONFIG),
        )
    bidirectional = MODELS / "qwen2-bidirectional"
    if bidirectional.exists():
        with pytest.raises(ModelError, match="no prefix cache to publish"):
            ingle.Engine(str(bidirectional), device="cpu", kv_events_config=json.dumps(CONFIG))


def test_without_the_setting_there_is_no_socket_thread_or_metric():
    with ingle.Engine(str(TINY), device="sim") as engine:
        assert engine.info["kv_events"] == []
        assert b"kv_events" not in engine.core.metrics()
