import asyncio

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from ingle.config import Settings
from ingle.dispatch import ERROR, TIMES
from ingle.errors import ConfigError
from ingle.server.span_record import SpanRecord
from ingle.server.tracing import CLIENT_LEFT, SPAN, Tracer, trace_of_caller

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def request(flags=None):
    headers = {} if flags is None else {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-{flags}"}
    return make_mocked_request("POST", "/v1/completions", headers)


class Sent(list):
    """Takes spans as the exporter does, while it has room."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def __call__(self, span):
        if len(self) == self.room:
            return False
        self.append(msgspec.json.decode(span, type=SpanRecord))
        return True


async def one(tracer, asked, answer):
    async def answering():
        tracer.begin(asked)
        return await answer()

    return await tracer.around(answering())


@pytest.mark.parametrize(
    ("ratio", "flags", "traced"),
    [(1, None, True), (0, None, False), (0, "01", True), (1, "00", False)],
)
async def test_callers_decide_for_their_traces_and_the_ratio_for_all_others(ratio, flags, traced):
    sent = Sent(9)

    async def answer():
        return web.Response()

    await one(Tracer(sent, ratio), request(flags), answer)
    assert len(sent) == traced
    if flags == "01":
        assert sent[0].trace_id == TRACE


async def test_a_connection_s_next_request_does_not_inherit_the_span():
    sent = Sent(9)
    tracer = Tracer(sent, 0)
    spans = []

    async def answer():
        spans.append(SPAN.get())
        return web.Response()

    await one(tracer, request("01"), answer)
    await one(tracer, request("00"), answer)
    assert [span is None for span in spans] == [False, True]
    assert len(sent) == 1


async def test_a_client_that_leaves_and_a_failed_stream_are_errors():
    sent = Sent(9)
    tracer = Tracer(sent)

    async def leaves():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await one(tracer, request(), leaves)

    async def fails():
        passed = []
        sink = SPAN.get().sink(lambda kind, payload: passed.append(kind))
        sink(TIMES, (1, 2, 3, 4, 0, 5, ["stop"]))
        sink(ERROR, b'{"error":{"code":"device_lost"},"status":500}')
        assert passed == [ERROR], "reports are the span's alone"
        return web.Response()

    await one(tracer, request(), fails)
    assert [span.error for span in sent] == [str(CLIENT_LEFT), "device_lost"]
    assert [stage.name for stage in sent[1].stages] == ["queue", "prefill", "decode"]


async def test_spans_without_room_are_counted():
    tracer = Tracer(Sent(1))

    async def answer():
        return web.Response()

    for _ in range(3):
        await one(tracer, request(), answer)
    assert b"ingle:trace_spans_sent_total 1\n" in tracer.metrics()
    assert b"ingle:trace_spans_dropped_total 2\n" in tracer.metrics()


def test_without_a_collector_only_sampled_traces_reach_the_core():
    assert trace_of_caller(request()) is None
    assert trace_of_caller(request("00")) is None
    assert trace_of_caller(request("01")).id == TRACE


@pytest.mark.parametrize("url", ["", "collector:4318", "ftp://x/", "http://", "http://x:99999/"])
def test_the_endpoint_must_be_an_address(url):
    with pytest.raises(ConfigError, match="otlp_traces_endpoint: must be a URL"):
        Settings(model="m", otlp_traces_endpoint=url)
