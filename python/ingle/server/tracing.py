"""[1] -> [9] Spans of requests for OpenTelemetry: when each began, waited, computed and ended.

Event loop. A span goes to another process (span_exporter.py) as one datagram at its request's end,
and is dropped if that one does not keep up. Without `--otlp-traces-endpoint` there is no `Tracer`.
"""

import random
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

import msgspec
from aiohttp import web

from ingle.dispatch import ERROR, TIMES, Sink
from ingle.generation import Trace
from ingle.server.span_record import SpanRecord, Stage
from ingle.server.traceparent import TRACEPARENT, parent_of


class Span:
    """One request's span while it runs."""

    def __init__(self, trace_id: str, parent_id: str | None, path: str) -> None:
        self.record = SpanRecord(path, trace_id, parent_id, time.time_ns())
        self._error: str | None = None

    def asked(self, operation: str, model: str, response_id: str, parsed: object) -> None:
        """What the request asks for, by the names of the semantic conventions; no texts."""
        record = self.record
        record.name = f"{operation} {model}"
        record.attributes |= {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "ingle",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.response.id": response_id,
        }
        for field, name in REQUEST_ATTRIBUTES.items():
            value = getattr(parsed, field, None)
            if isinstance(value, int | float):
                record.attributes[name] = value

    def trace(self) -> Trace:
        """What the core has to know: the id for exemplars, and that it reports."""
        return Trace(self.record.trace_id, report=True)

    def sink(self, sink: Sink) -> Sink:
        """A sink that takes what the core reports for the span, and passes on the rest."""

        def taking(kind: int, payload: Any) -> None:
            if kind == TIMES:
                self._take_times(payload)
                return
            if kind == ERROR:
                self._error = code_of(payload)
            sink(kind, payload)

        return taking

    def end(self, status: int) -> SpanRecord:
        """The whole span. `status`: of the HTTP response; CLIENT_LEFT if there was nobody left."""
        record = self.record
        record.end_ns = time.time_ns()
        record.attributes["http.response.status_code"] = status
        record.error = self._error or (str(status) if status >= CLIENT_LEFT else None)
        if record.error is not None:
            record.attributes["error.type"] = record.error
        return record

    def _take_times(self, times: Any) -> None:
        scheduled_us, first_us, end_us, prompt, cached, generated, reasons = times
        # The core's clock does not count from 1970. Its report is fresh.
        end_ns = time.time_ns()
        at = [end_ns - 1000 * (end_us - us) for us in (0, scheduled_us, first_us or end_us)]
        stages = zip(("queue", "prefill", "decode"), at, [*at[1:], end_ns], strict=True)
        self.record.stages = [Stage(*each) for each in stages]
        if first_us is None:
            self.record.stages.pop()
        self.record.attributes |= {
            "gen_ai.usage.input_tokens": prompt,
            "gen_ai.usage.cache_read.input_tokens": cached,
            "gen_ai.usage.output_tokens": generated,
            "gen_ai.response.finish_reasons": reasons,
            # Not of the conventions: vLLM's names, seconds.
            "gen_ai.latency.time_in_queue": scheduled_us / 1e6,
            "gen_ai.latency.time_in_model_prefill": ((first_us or end_us) - scheduled_us) / 1e6,
            "gen_ai.latency.time_in_model_decode": (end_us - (first_us or end_us)) / 1e6,
            "gen_ai.latency.time_to_first_token": (first_us or end_us) / 1e6,
            "gen_ai.latency.e2e": end_us / 1e6,
        }


class Tracer:
    """Decides which requests are traced, and sends their spans."""

    def __init__(self, send: Callable[[bytes], bool], sample_ratio: float = 1.0) -> None:
        """`send`: takes a span without waiting, or says False.

        `sample_ratio`: of the requests without a traceparent. One with a traceparent is traced if
        its caller is.
        """
        self._send = send
        self._sample_ratio = sample_ratio
        self.num_sent = 0
        self.num_dropped = 0

    async def around(self, answering: Awaitable[web.StreamResponse]) -> web.StreamResponse:
        """What the request is answered; its span, if it got one, is sent then."""
        SPAN.set(None)  # A connection's requests share a context.
        status = CLIENT_LEFT
        try:
            response = await answering
            status = response.status
            return response
        finally:
            span = SPAN.get()
            if span is not None:
                self._finish(span.end(status))

    def begin(self, request: web.BaseRequest) -> Span | None:
        """Starts the span of a request, if it is to be traced."""
        parent = parent_of(request.headers.get(TRACEPARENT))
        if parent is None:
            if random.random() >= self._sample_ratio:  # noqa: S311 # No secret.
                return None
            span = Span(f"{random.getrandbits(128) or 1:032x}", None, request.path)
        elif parent.is_sampled:
            span = Span(parent.trace_id, parent.span_id, request.path)
        else:
            return None
        span.record.attributes = {
            "http.request.method": request.method,
            "url.path": request.path,
        }
        SPAN.set(span)
        return span

    def metrics(self) -> bytes:
        """For /metrics."""
        return b"".join(
            b"# HELP ingle:trace_spans_%s_total %s\n# TYPE ingle:trace_spans_%s_total counter\n"
            b"ingle:trace_spans_%s_total %d\n" % (name, what, name, name, count)
            for name, what, count in (
                (b"sent", b"Spans handed to the exporter.", self.num_sent),
                (b"dropped", b"Spans that it did not take in time.", self.num_dropped),
            )
        )

    def _finish(self, record: SpanRecord) -> None:
        if self._send(ENCODER.encode(record)):
            self.num_sent += 1
        else:
            self.num_dropped += 1


def trace_of_caller(request: web.BaseRequest) -> Trace | None:
    """The caller's trace, if it is sampled: exemplars show it even without a collector."""
    parent = parent_of(request.headers.get(TRACEPARENT))
    return Trace(parent.trace_id) if parent is not None and parent.is_sampled else None


def code_of(error: bytes) -> str:
    """The code in an ERROR event."""
    try:
        return str(msgspec.json.decode(error)["error"]["code"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "error"


OPERATIONS: Final = {
    "cmpl": "text_completion",
    "chatcmpl": "chat",
    "resp": "chat",
    "msg": "chat",
    "embd": "embeddings",
}
"""By the start of a response's id."""
REQUEST_ATTRIBUTES: Final = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
    "stream": "gen_ai.request.stream",
}
CLIENT_LEFT: Final = 499
"""nginx's status for it. Statuses from here on are our own faults."""
SPAN: ContextVar[Span | None] = ContextVar("SPAN", default=None)
"""Of the request that this task serves. Looked at without a call of Python's: each request does."""
ENCODER: Final = msgspec.json.Encoder()
