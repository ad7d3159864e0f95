"""A small OpenTelemetry collector: OTLP over HTTP, spans only."""

import contextlib
import http.server
import threading
import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

LIMIT_S = 20.0


class Collector:
    """Listens while it is entered; `spans` are those that have arrived."""

    def __init__(self):
        self.spans, self.resources, self.headers = [], [], []
        self.arrived = threading.Condition()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                outer._take(self.path, dict(self.headers), body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _take(self, path, headers, body):
        sent = ExportTraceServiceRequest.FromString(body)
        with self.arrived:
            self.headers.append({"path": path} | headers)
            for each in sent.resource_spans:
                self.resources.append(values(each.resource.attributes))
                for scope in each.scope_spans:
                    self.spans += scope.spans
            self.arrived.notify_all()

    def wait_for(self, count):
        """The spans, once there are so many."""
        deadline = time.monotonic() + LIMIT_S
        with self.arrived:
            while len(self.spans) < count:
                left = deadline - time.monotonic()
                assert left > 0, f"{len(self.spans)} of {count} spans: {self.spans}"
                self.arrived.wait(left)
            return list(self.spans)


def values(attributes):
    """Attributes as a dict."""
    return {each.key: value(each.value) for each in attributes}


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(each) for each in any_value.array_value.values]
    return getattr(any_value, kind)


@contextlib.contextmanager
def silent_listener():
    """An address that takes connections and never answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"
