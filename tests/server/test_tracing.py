"""Spans of requests at a collector, and trace ids in metrics and logs, by a locked-down server."""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from server.collector import Collector, silent_listener, values
from server.worker import Worker, wait_for

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
BATCH = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
BODY = {"prompt": "The quick", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def collector():
    with Collector() as found:
        yield found


@pytest.fixture(scope="module")
def worker(collector):
    environment = BATCH | {
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-token=abc",
    }
    flags = ("--device", "cpu", "--otlp-traces-endpoint", collector.url)
    with Worker(*flags, environment=environment) as found:
        yield found


def next_request(collector, send):
    """What `send` makes arrive: the span of a request, and those of its stages by name."""
    before = len(collector.spans)
    send()
    deadline = time.monotonic() + 60
    while True:
        spans = collector.wait_for(before + 1)[before:]
        roots = [span for span in spans if span.kind == span.SPAN_KIND_SERVER]
        if roots:
            [root] = roots
            return root, {s.name: s for s in spans if s.parent_span_id == root.span_id}
        assert time.monotonic() < deadline


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_of_its_caller_with_a_child_for_each_stage(worker, collector, stream):
    def send():
        reply = worker.post("/v1/completions", BODY | {"stream": stream}, headers=SAMPLED)
        assert reply.status == 200

    began = time.time_ns()
    span, stages = next_request(collector, send)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    assert span.name == "text_completion llama-tied-bf16"
    assert list(stages) == ["queue", "prefill", "decode"]
    times = [(stage.start_time_unix_nano, stage.end_time_unix_nano) for stage in stages.values()]
    assert times[0][1] == times[1][0]
    assert times[1][1] == times[2][0]
    edges = [began, span.start_time_unix_nano, *sum(times, ()), span.end_time_unix_nano]
    slack_ns = 50e6  # The report is dated when it is read.
    assert all(b >= a - slack_ns for a, b in itertools.pairwise(edges)), edges
    found = values(span.attributes)
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.request.max_tokens"] == 4
    assert found["gen_ai.usage.output_tokens"] == 4
    assert found["gen_ai.usage.input_tokens"] > 0
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert found["http.response.status_code"] == 200
    assert found["gen_ai.latency.e2e"] >= found["gen_ai.latency.time_to_first_token"] > 0
    known = {v for k, v in vars(gen_ai_attributes).items() if k.startswith("GEN_AI_")}
    own = {name for name in found if name.startswith("gen_ai.latency.")}
    unknown = {name for name in found if name.startswith("gen_ai.")} - known - own
    assert unknown <= {"gen_ai.usage.cache_read.input_tokens", "gen_ai.request.stream"}


def test_the_other_endpoints_are_named_for_what_they_do(worker, collector):
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    for path, body, operation in (
        ("/v1/chat/completions", chat, "chat"),
        ("/v1/messages", chat, "chat"),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 2}, "chat"),
        ("/v1/embeddings", {"input": "Hello"}, "embeddings"),
    ):

        def send(path=path, body=body):
            reply = worker.post(path, body)
            assert reply.status == 200, reply.body

        span, stages = next_request(collector, send)
        found = values(span.attributes)
        assert (found["url.path"], found["gen_ai.operation.name"]) == (path, operation)
        assert found["gen_ai.usage.input_tokens"] > 0
        assert "prefill" in stages
        assert span.parent_span_id == b""


def test_a_refused_request_is_a_span_without_stages(worker, collector):
    def send():
        assert worker.post("/v1/completions", {"prompt": "x", "temperature": 9}).status == 400

    span, stages = next_request(collector, send)
    assert stages == {}
    assert values(span.attributes)["http.response.status_code"] == 400
    assert span.status.code == span.status.STATUS_CODE_UNSET, "the caller's fault"


def test_the_collector_learns_whose_spans_these_are(worker, collector):
    next_request(collector, lambda: worker.post("/v1/completions", BODY))
    resource = collector.resources[-1]
    assert resource["service.name"] == "ingle"
    assert resource["deployment.environment.name"] == "test"
    assert collector.headers[-1]["path"] == "/v1/traces"
    assert {k.lower(): v for k, v in collector.headers[-1].items()}["x-token"] == "abc"


def test_a_caller_that_records_nothing_gets_no_span(worker, collector):
    before = sent(worker)
    assert worker.post("/v1/completions", BODY, headers=UNSAMPLED).status == 200
    assert worker.get("/health").status == 200
    assert sent(worker) == before
    assert worker.post("/v1/completions", BODY, headers=SAMPLED).status == 200
    assert sent(worker) == before + 1


def sent(worker):
    [line] = [
        line
        for line in worker.get("/metrics").body.decode().splitlines()
        if line.startswith("ingle:trace_spans_sent_total ")
    ]
    return int(line.split()[1])


def test_the_worker_is_locked_down_and_has_none_of_opentelemetry(worker):
    layers = worker.get("/health").json["hardening"]
    assert "filter" in layers["on"]
    with open(f"/proc/{worker.process.pid}/maps") as maps:
        assert "google/_upb" not in maps.read()


def test_the_exporter_has_its_own_filter_on_every_thread(worker, collector):
    assert worker.post("/v1/completions", BODY).status == 200
    assert collector.wait_for(1)
    pid = exporter_of(worker)
    tasks = os.listdir(f"/proc/{pid}/task")
    assert len(tasks) > 1, "OpenTelemetry sends on a thread of its own"
    base_and_own = filters_of("self") + 2
    assert {filters_of(f"{pid}/task/{task}") for task in tasks} == {base_and_own}


def filters_of(process):
    """How many seccomp filters are on a process or thread."""
    with open(f"/proc/{process}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    if "Seccomp_filters" not in status:
        pytest.skip("this kernel does not count filters")
    return int(status["Seccomp_filters"])


def exporter_of(worker):
    [pid] = [pid for pid in children(worker.process.pid) if name(pid) == "ingle-exporter"]
    return pid


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")
def test_a_collector_of_ipv6_alone_gets_spans():
    with Collector("::1") as collector:
        gets_a_span(collector, collector.url)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_a_collector_with_a_name_and_a_certificate_gets_spans(tmp_path):
    certificate = tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key", "-out"]
    subprocess.run([*command, certificate], check=True, capture_output=True, timeout=60)
    both = tmp_path / "both.pem"
    both.write_text((tmp_path / "key").read_text() + certificate.read_text())
    trust = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificate)}
    with Collector(certificate=both) as collector:
        gets_a_span(collector, collector.url_of("localhost"), **trust)


def gets_a_span(collector, url, **environment):
    flags = ("--device", "sim", "--sim-speed", "inf", "--otlp-traces-endpoint", url)
    with Worker(*flags, environment=BATCH | environment) as worker:
        assert worker.post("/v1/completions", BODY).status == 200
        assert collector.wait_for(1)


@pytest.mark.parametrize("place", ["nothing listens", "it never answers"])
def test_a_dead_collector_neither_slows_nor_stops_serving(place):
    with silent_listener() as url:
        if place == "nothing listens":
            url = "http://127.0.0.1:9/v1/traces"
        with Worker("--device", "cpu", "--otlp-traces-endpoint", url, environment=BATCH) as worker:
            took = []
            for _ in range(20):
                began = time.monotonic()
                assert worker.post("/v1/completions", BODY).status == 200
                took.append(time.monotonic() - began)
            assert sorted(took)[10] < 1.0
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(15) == 0


def test_spans_that_the_exporter_does_not_take_are_dropped_and_counted(collector):
    flags = ("--device", "sim", "--sim-speed", "inf", "--otlp-traces-endpoint", collector.url)
    with Worker(*flags, environment=BATCH) as worker:
        os.kill(exporter_of(worker), signal.SIGKILL)

        def has_dropped():
            assert worker.post("/v1/completions", BODY).status == 200
            return "ingle:trace_spans_dropped_total 0\n" not in metrics()

        def metrics():
            return worker.get("/metrics").body.decode()

        # Its socket is closed some time after the signal; until then it takes spans.
        wait_for(has_dropped, 10, metrics)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]


def name(pid):
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def test_the_trace_of_a_request_is_an_exemplar_for_scrapers_that_ask(worker):
    assert worker.post("/v1/completions", BODY, headers=SAMPLED).status == 200
    plain = worker.get("/metrics")
    assert plain.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert TRACE.encode() not in plain.body
    asked = worker.get("/metrics", headers=OPENMETRICS)
    assert asked.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {each.name: each for each in text_string_to_metric_families(asked.body.decode())}
    assert families["vllm:prompt_tokens"].type == "counter"
    exemplars = [
        sample.exemplar
        for sample in families["vllm:e2e_request_latency_seconds"].samples
        if sample.exemplar
    ]
    assert TRACE in {each.labels["trace_id"] for each in exemplars}
    assert all(abs(float(each.timestamp) - time.time()) < 600 for each in exemplars)


def test_exemplars_need_no_collector():
    with Worker("--device", "sim", "--sim-speed", "inf") as worker:
        assert worker.post("/v1/completions", BODY, headers=UNSAMPLED).status == 200
        assert TRACE.encode() not in worker.get("/metrics", headers=OPENMETRICS).body
        assert worker.post("/v1/completions", BODY, headers=SAMPLED).status == 200
        assert TRACE.encode() in worker.get("/metrics", headers=OPENMETRICS).body
