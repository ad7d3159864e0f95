import asyncio
import contextlib
import gc
import json
import threading

import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application

from ingle import _core
from ingle.engine import Engine
from ingle.errors import FatalError, RefusedError
from ingle.server import ApiKeys, create_app


@pytest.fixture
def engine(core, monkeypatch):
    monkeypatch.setattr("ingle.engine._core.Engine", lambda options, sockets, *shared: core)
    with Engine("m") as made:
        yield made


@pytest.fixture
async def client(engine):
    reasons = []
    keys = ApiKeys({"k": "alice"}, admin_keys={"k"})
    app = create_app(engine, api_keys=keys, on_fatal=reasons.append)
    headers = {"Authorization": "Bearer k"}
    async with TestClient(TestServer(app), headers=headers) as made:
        made.fatal_reasons = reasons
        yield made


BODY = {"prompt": "x"}


async def error_of(reply):
    document = await reply.json()
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return document["error"]


async def test_plain_answer_is_the_cores_body(core, client):
    core.on_submit = lambda key, request: core.push(key, _core.END, b'{"x":1}')
    reply = await client.post("/v1/completions", json=BODY)
    assert (reply.status, await reply.read()) == (200, b'{"x":1}')
    [request] = core.requests.values()
    assert request["tenant"] == "alice"
    assert request["output"]["response_id"].startswith("cmpl-")
    assert request["output"]["model"] == "m"


async def test_stream_is_the_cores_frames(core, client):
    frames = [b"data: 1\n\n", b"data: [DONE]\n\n"]

    def submit(key, request):
        assert request["output"]["chunked"]
        for frame in frames:
            # The last one brings the end of the body with it.
            end = b"0\r\n\r\n" if frame == frames[-1] else b""
            core.push(key, _core.FRAME, b"%x\r\n%b\r\n%b" % (len(frame), frame, end))
        core.push(key, _core.END)

    core.on_submit = submit
    reply = await client.post("/v1/completions", json=BODY | {"stream": True})
    assert await reply.read() == b"".join(frames)
    assert core.pinged == []


async def test_long_prompts_are_tokenised_off_the_loop(core, client):
    threads = []

    def submit(key, request):
        threads.append(threading.current_thread())
        core.push(key, _core.END, b"{}")

    core.on_submit = submit
    for size in (10, 100_000):
        assert (await client.post("/v1/completions", json={"prompt": "x" * size})).status == 200
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_refusal_of_the_core_comes_before_the_stream(core, client):
    def refuse(key, request):
        raise RefusedError("too long", "prompt", "context_length_exceeded")

    core.on_submit = refuse
    reply = await client.post("/v1/completions", json=BODY | {"stream": True})
    assert reply.status == 400
    assert (await error_of(reply))["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("status", "shown"), [(500, 500), (503, 503)])
async def test_failed_request_has_its_status(core, client, status, shown):
    error = {"error": {"message": "not finite", "code": "c"}, "status": status}
    core.on_submit = lambda key, request: core.push(key, _core.ERROR, json.dumps(error).encode())
    reply = await client.post("/v1/completions", json=BODY)
    assert reply.status == shown
    assert (await error_of(reply))["message"] == "not finite"
    assert client.fatal_reasons == []


async def test_dead_core_is_reported_once(core, client):
    def die(key, request):
        raise FatalError("CUDA error 719")

    core.on_submit = die
    for _ in range(2):
        reply = await client.post("/v1/completions", json=BODY)
        assert reply.status == 503
        assert "719" not in (await error_of(reply))["message"]
    assert client.fatal_reasons == ["CUDA error 719"]


async def test_a_fault_of_ours_reveals_nothing(core, client, caplog):
    def fail(exemplars):
        raise ZeroDivisionError("secret detail")

    core.metrics = fail
    reply = await client.get("/metrics", headers={"X-Request-Id": "abc-1"})
    assert (reply.status, reply.headers["X-Request-Id"]) == (500, "abc-1")
    assert (await error_of(reply))["message"] == "internal error"
    assert "request abc-1 failed" in caplog.text
    # Where it happened; its text could quote a prompt.
    assert "in fail" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "secret detail" not in caplog.text


@pytest.mark.parametrize(("status", "is_ours"), [(500, True), (503, False), (499, False)])
@pytest.mark.parametrize("stream", [False, True])
async def test_log_line_of_a_failure_has_the_request_s_id(
    core, client, caplog, stream, status, is_ours
):
    error = {"error": {"message": "not finite", "code": "c"}, "status": status}

    def fail(key, request):
        if stream:
            core.push(key, _core.FRAME, b"9\r\ndata: x\n\n\r\n")
        core.push(key, _core.ERROR, json.dumps(error).encode())

    core.on_submit = fail
    reply = await client.post("/v1/completions", json=BODY | {"stream": stream})
    assert reply.status == (200 if stream else status)
    lines = [record.getMessage() for record in caplog.records]
    expected = f"request {reply.headers['X-Request-Id']} failed: not finite"
    assert lines == ([expected] if is_ours else [])


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_is_aborted(core, engine, stream):
    submitted, aborted = asyncio.Event(), asyncio.Event()
    core.on_submit = lambda key, request: submitted.set()
    core.abort = lambda key: aborted.set()
    server = TestServer(create_app(engine), handler_cancellation=True)
    async with TestClient(server) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json=BODY | {"stream": stream}))
        await submitted.wait()
        asking.cancel()
        await client.session.close()
        async with asyncio.timeout(10):
            await aborted.wait()


async def test_body_that_never_comes(client, monkeypatch):
    monkeypatch.setattr("ingle.server.routes.BODY_S", 0.05)

    async def body():
        yield b'{"prompt":'
        await asyncio.Event().wait()

    headers = {"Content-Type": "application/json"}
    reply = await client.post("/v1/completions", data=body(), headers=headers)
    assert reply.status == 408
    assert (await error_of(reply))["code"] == "request_timeout"


async def test_stuck_core_is_unhealthy_and_not_ready(core, client):
    for status, healthy, ready in (
        ("ok", 200, 200),
        ("draining", 200, 503),
        ("stuck", 503, 503),
        ("starting", 503, 503),
    ):
        core.health_status = status
        assert (await client.get("/health")).status == healthy
        assert (await client.get("/ready")).status == ready


async def test_panic_of_the_core_is_an_answer(core, client, caplog):
    class PanicException(BaseException):
        """As pyo3 raises it."""

    def panic(key, request):
        raise PanicException("index out of bounds")

    core.on_submit = panic
    reply = await client.post("/v1/completions", json=BODY)
    assert reply.status == 500
    assert (await error_of(reply))["message"] == "internal error"
    assert "PanicException" in caplog.text
    assert "out of bounds" not in caplog.text


async def test_client_that_leaves_while_its_prompt_is_tokenised(core, engine, caplog):
    submitted, go_on, aborted = asyncio.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def submit(key, request):
        loop.call_soon_threadsafe(submitted.set)
        assert go_on.wait(10)

    core.on_submit = submit
    core.abort = lambda key: aborted.set()
    server = TestServer(create_app(engine), handler_cancellation=True)
    async with TestClient(server) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x" * 50_000}))
        await submitted.wait()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await client.session.close()
        while server.handler.connections:  # noqa: ASYNC110 # aiohttp has no event for it.
            await asyncio.sleep(0)
        go_on.set()
        async with asyncio.timeout(10):
            await aborted.wait()
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_mounted_under_a_prefix_the_same_routes_are_open(core, engine):
    """Also twice: /health and /ready need no key wherever they are, and all else does."""
    inner, middle, outer = (
        create_app(engine, api_keys=ApiKeys({"k": "a"})),
        Application(),
        Application(),
    )
    middle.add_subapp("/llm", inner)
    outer.add_subapp("/ai", middle)
    core.on_submit = lambda key, request: core.push(key, _core.END, b'{"x":1}')
    async with TestClient(TestServer(outer)) as made:
        for path in ("/ai/llm/health", "/ai/llm/ready"):
            assert (await made.get(path)).status == 200, path
        for path in ("/ai/llm/v1/models", "/ai/llm/nowhere", "/ai/llm/health/", "/ai/llm/health?x"):
            reply = await made.get(path)
            assert reply.status == 401, path
            assert (await error_of(reply))["code"] == "invalid_api_key"
        assert (await made.post("/ai/llm/health")).status == 401
        made.session.headers["Authorization"] = "Bearer k"
        assert (await made.get("/ai/llm/nowhere")).status == 404
        reply = await made.post("/ai/llm/v1/completions", json=BODY)
        assert (reply.status, await reply.read()) == (200, b'{"x":1}')
