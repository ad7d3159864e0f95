"""Threads for slow work: tenants take turns, no request starts one, a lack of them is 503."""

import asyncio
import threading

import pytest
from aiohttp.test_utils import TestClient, TestServer

from ingle import _core
from ingle.engine import Engine
from ingle.errors import ConfigError, OverloadedError
from ingle.server import lifecycle, off_loop
from ingle.server.app import create_app
from ingle.server.headroom import Headroom
from ingle.server.state import STATE
from ingle.server.turns import Turns, start_threads
from ingle.threads import thread_pool

LIMIT_S = 10

ROOMY = Headroom(lambda enough: 1 << 40, lambda: None)


class Gate:
    """Work that reports its tenant when it begins, and ends when the test says so."""

    def __init__(self):
        self.began = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._open = threading.Semaphore(0)

    def work(self, name):
        self._loop.call_soon_threadsafe(self.began.put_nowait, name)
        assert self._open.acquire(timeout=LIMIT_S)
        return name

    def let(self, count):
        self._open.release(count)

    async def next(self, count):
        async with asyncio.timeout(LIMIT_S):
            return [await self.began.get() for _ in range(count)]


async def test_one_tenant_never_has_all_threads_and_others_take_turns():
    gate, turns = Gate(), Turns(ROOMY, 3)
    tasks = [asyncio.create_task(turns.run("hog", 0, gate.work, "hog")) for _ in range(10)]
    assert await gate.next(2) == ["hog", "hog"]
    for name in ("b", "b", "c"):
        tasks.append(asyncio.create_task(turns.run(name, 0, gate.work, name)))
    # The last thread is not the hog's; then each end goes to whoever has the fewest threads.
    assert await gate.next(1) == ["b"]
    gate.let(100)
    after = await gate.next(10)
    assert "c" in after[:3], after
    assert sorted(await asyncio.gather(*tasks)) == ["b", "b", "c"] + ["hog"] * 10
    turns.close()


async def test_a_caller_that_leaves_gives_its_turn_to_the_next():
    gate, turns = Gate(), Turns(ROOMY, 2)
    first = asyncio.create_task(turns.run("a", 0, gate.work, 1))
    await gate.next(1)
    waiting = [asyncio.create_task(turns.run("a", 0, gate.work, i)) for i in (2, 3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    first.cancel()  # It has begun: its thread is busy until its work ends.
    await asyncio.wait([first, waiting[0]])
    gate.let(2)
    assert await gate.next(1) == [3]
    assert await waiting[1] == 3
    assert not turns._running
    assert not turns._waiting
    turns.close()


async def test_a_slow_request_whose_client_leaves_in_the_queue_is_never_submitted(
    core, monkeypatch
):
    monkeypatch.setattr("ingle.engine._core.Engine", lambda options, sockets, *shared: core)
    began, go_on, submitted = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def submit(key, request):
        submitted.append(request["grammar"]["regex"])
        loop.call_soon_threadsafe(began.set)
        assert go_on.wait(LIMIT_S)
        core.push(key, _core.END, b"{}")

    core.on_submit = submit
    with Engine("m") as engine:
        app = create_app(engine)
        app[STATE].turns = Turns(ROOMY, 1)
        server = TestServer(app, handler_cancellation=True)
        async with TestClient(server) as client:
            body = {"prompt": "x", "guided_regex": "a"}
            first = asyncio.create_task(client.post("/v1/completions", json=body))
            async with asyncio.timeout(LIMIT_S):
                await began.wait()
            leaving = asyncio.create_task(
                client.post("/v1/completions", json=body | {"guided_regex": "b"})
            )
            async with asyncio.timeout(LIMIT_S):
                while not app[STATE].turns._waiting:  # noqa: ASYNC110 # There is no event for it.
                    await asyncio.sleep(0)
                leaving.cancel()
                while app[STATE].turns._waiting:  # noqa: ASYNC110 # There is no event for it either.
                    await asyncio.sleep(0)
            go_on.set()
            assert (await first).status == 200
    assert submitted == ["a"]


async def test_errors_of_the_work_are_the_callers():
    def fail():
        raise OverloadedError("busy", 1.0, 503)

    turns = Turns(ROOMY, 1)
    for _ in range(3):
        with pytest.raises(OverloadedError, match="busy"):
            await turns.run("a", 0, fail)
    turns.close()


def no_threads(monkeypatch):
    """From now on the system gives no thread."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


async def test_long_bodies_and_grammars_without_threads_are_503(core, monkeypatch):
    core.on_submit = lambda key, request: core.push(key, _core.END, b"{}")
    monkeypatch.setattr("ingle.engine._core.Engine", lambda options, sockets, *shared: core)
    with Engine("m") as engine:
        app = create_app(engine)
        async with TestClient(TestServer(app)) as client:
            fresh = thread_pool(1, "ingle-bodies")
            monkeypatch.setattr(off_loop, "THREAD", fresh)
            with monkeypatch.context() as patch:
                no_threads(patch)
                for body in (
                    {"prompt": "x" * 100_000},
                    {"prompt": "x", "guided_regex": "a+"},
                ):
                    reply = await client.post("/v1/completions", json=body)
                    assert reply.status == 503, await reply.text()
                    assert "no thread" in (await reply.json())["error"]["message"]
                short = await client.post("/v1/completions", json={"prompt": "x"})
                assert short.status == 200
            for body in ({"prompt": "x" * 100_000}, {"prompt": "x", "guided_regex": "a+"}):
                assert (await client.post("/v1/completions", json=body)).status == 200


def test_threads_that_cannot_be_started_are_named_at_the_start(monkeypatch):
    no_threads(monkeypatch)
    with pytest.raises(ConfigError, match=r"the 8 threads ingle-submit: .*pids\.max"):
        Turns(ROOMY).start()
    with pytest.raises(ConfigError, match="ingle-shutdown"):
        lifecycle.LastThreads().start()


def test_a_pool_has_all_its_threads_once_started():
    pool = thread_pool(5, "ingle-test")
    start_threads(pool, 5, "ingle-test")
    names = {each.name for each in threading.enumerate()}
    assert {f"ingle-test_{i}" for i in range(5)} <= names
    pool.shutdown()
