"""The process that sends spans to an OpenTelemetry collector (`--otlp-traces-endpoint`).

The locked worker can open no connection, and a collector that is slow must not slow it. So the
worker forks this process while it has one thread, and hands it each span as a datagram that it
drops if there is no room. This process alone imports OpenTelemetry. It can connect, and open for
reading what Python and certificates need; its own filter (security/policy/exporter.toml), which
comes before the first span, refuses the rest. It ends when the worker does.
"""

import contextlib
import importlib.util
import ipaddress
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ingle import __version__
from ingle.errors import ConfigError
from ingle.hardening import confine_exporter, finish_exporter
from ingle.server.forked import fork, serve_the_worker
from ingle.server.span_record import SpanRecord

PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


class SpanExporter:
    """The worker's end."""

    def __init__(self, endpoint: str, environment: Mapping[str, str], *, locked: bool) -> None:
        """Forks. The process must have one thread.

        `environment`: OpenTelemetry's variables, of `exporter_environment`. `locked`: confine the
        process.
        """
        self._pipe, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fork(lambda: _run(other, endpoint, environment, locked))
        other.close()
        self._pipe.setblocking(False)

    def fileno(self) -> int:
        """The descriptor of the worker's end."""
        return self._pipe.fileno()

    def send(self, span: bytes) -> bool:
        """Hands over one span; False if there is no room, or nobody any more. Never waits."""
        try:
            self._pipe.send(span)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Lets the process send what it has, and waits for that for a moment."""
        with contextlib.suppress(OSError):
            self._pipe.settimeout(FLUSH_S)
            self._pipe.shutdown(socket.SHUT_WR)
            self._pipe.recv(1)
        self._pipe.close()


def exporter_environment() -> dict[str, str]:
    """OpenTelemetry's variables; taken before the lock-down empties the environment.

    Errors: ConfigError if a package is missing.
    """
    for package in PACKAGES:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ConfigError(
                f"otlp_traces_endpoint: {package} is not installed; pip install ingle[otel]"
            )
    return {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}


def _run(pipe: socket.socket, endpoint: str, environment: Mapping[str, str], locked: bool) -> None:
    """The process itself, until the worker has gone."""
    serve_the_worker("ingle-exporter")
    close_all_but(pipe.fileno())
    os.environ.update(environment)
    # Before it is confined: what this imports asks by a bind whether the machine has IPv6.
    exporter = exporter_to(endpoint)
    if locked:
        files = [environment[name] for name in FILES if name in environment]
        confine_exporter(files, ports_of(endpoint))
    export(pipe, exporter, finish_exporter if locked else do_nothing)


def exporter_to(endpoint: str) -> Any:
    """OpenTelemetry's exporter; starts no thread and opens no connection."""
    # Here, so that the worker does not have it.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint)


def ports_of(url: str) -> list[int]:
    """The TCP ports that an http or https address takes: a name's long DNS answers come by TCP."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    try:
        ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return [port, DNS_PORT]
    return [port]


def do_nothing() -> None:
    """For a process without a lock-down."""


def close_all_but(kept: int) -> None:
    """The worker's listener and others stay the worker's alone."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            # The listing's own is closed by now.
            with contextlib.suppress(OSError):
                os.close(int(name))


def export(pipe: socket.socket, exporter: Any, lock: Callable[[], None]) -> None:
    """Sends spans in batches, on a thread of OpenTelemetry's, until the worker closes the pipe.

    `lock`: called once every thread exists, before the first span is read.
    """
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    ids = ids_of_worker()
    service = {SERVICE_VERSION: __version__}
    named = os.environ.get("OTEL_SERVICE_NAME"), os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not named[0] and SERVICE_NAME not in named[1]:
        service[SERVICE_NAME] = "ingle"
    resource = Resource.create(service)
    provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, id_generator=ids)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("ingle", __version__)
    decoder = msgspec.json.Decoder(SpanRecord)
    lock()
    while datagram := pipe.recv(MOST_BYTES):
        record = decoder.decode(datagram)
        ids.trace_id = int(record.trace_id, 16)
        record_span(tracer, record)
    provider.shutdown()


def ids_of_worker() -> Any:
    """A generator whose next trace id is the one that the worker chose."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):  # type: ignore[misc, unused-ignore] # An optional package.
        trace_id = 0

        def generate_trace_id(self) -> int:
            return self.trace_id

    return Ids()


def record_span(tracer: Any, record: SpanRecord) -> None:
    """One request: its span, and a child for each stage."""
    from opentelemetry import trace
    from opentelemetry.trace.status import Status, StatusCode

    context = None
    if record.parent_id is not None:
        parent = trace.SpanContext(
            int(record.trace_id, 16),
            int(record.parent_id, 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
    span = tracer.start_span(
        record.name,
        context,
        kind=trace.SpanKind.SERVER,
        attributes=record.attributes,
        start_time=record.start_ns,
    )
    inside = trace.set_span_in_context(span)
    for stage in record.stages:
        child = tracer.start_span(stage.name, inside, start_time=stage.start_ns)
        child.end(stage.end_ns)
    if record.error is not None:
        span.set_status(Status(StatusCode.ERROR, record.error))
    span.end(record.end_ns)


FILES = (
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
)
"""Variables that name files."""
DNS_PORT = 53
MOST_BYTES = 1 << 16
FLUSH_S = 3.0
"""A collector that is gone must not keep the worker from ending."""
