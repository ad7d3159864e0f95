"""A small OpenTelemetry collector: OTLP over HTTP, spans only."""

import contextlib
import http.server
import socket
import ssl
import threading
import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

LIMIT_S = 60.0


class Collector:
    """Listens while it is entered; `spans` are those that have arrived.

    `certificate`: a file with certificate and key, to speak TLS.
    """

    def __init__(self, host="127.0.0.1", certificate=None):
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

        class Server(http.server.ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        self._server = Server((host, 0), Handler)
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self):
        return self.url_of(self._server.server_address[0])

    def url_of(self, host):
        """The same by another name of this machine."""
        host = f"[{host}]" if ":" in host else host
        return f"{self._scheme}://{host}:{self._server.server_address[1]}/v1/traces"

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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"
