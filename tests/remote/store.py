"""A small HTTP server of the tests: an S3 bucket and a Hugging Face hub, with faults on demand."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Store:
    """Objects by path, and what goes wrong with them."""

    def __init__(self):
        self.objects = {}
        self.asked = []
        """(path, range, headers) of every request."""
        self.faults = []
        """Functions (handler, body, first) -> bool, tried on each GET of an object; True: done."""
        self.page_size = 1000
        self.multipart = False
        self.kms = False
        """Whether objects are encrypted with a key of the store: ETags are no hash."""
        self.lock = threading.Lock()

    def etag(self, name):
        salt = b"kms" if self.kms else b""
        digest = hashlib.md5(salt + self.objects[name], usedforsecurity=False).hexdigest()
        return f'"{digest}-2"' if self.multipart else f'"{digest}"'

    @contextlib.contextmanager
    def serve(self):
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                store.answer(self)

            def log_message(self, *arguments):
                pass

        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def answer(self, handler):
        parts = urlsplit(handler.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        with self.lock:
            self.asked.append((path, handler.headers.get("Range"), dict(handler.headers)))
        if "list-type" in query:
            return send(handler, 200, self.listing(query).encode())
        if path.startswith("/api/models/"):
            return send(handler, 200, json.dumps(self.card()).encode())
        name = re.sub(rf"^/[^/]+/[^/]+/resolve/{COMMIT}/|^/bucket/", "", path)
        if name not in self.objects:
            return send(handler, 404, b"")
        return self.send_object(handler, name)

    def send_object(self, handler, name):
        body, etag = self.objects[name], self.etag(name)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        first, last = map(int, wanted.groups()) if wanted else (0, len(body) - 1)
        with self.lock:
            # A test may look at the list as soon as it has its answer.
            faults = self.faults
            for place, fault in enumerate(faults):
                if fault(handler, body, first):
                    self.faults = faults[:place] + faults[place + 1 :]
                    return None
        if handler.headers.get("If-Match") not in (None, etag):
            return send(handler, 412, b"")
        span = f"bytes {first}-{last}/{len(body)}"
        headers = {"ETag": etag, "Content-Range": span}
        headers |= {"x-amz-server-side-encryption": "aws:kms"} if self.kms else {}
        return send(handler, 206, body[first : last + 1], headers)

    def listing(self, query):
        prefix = query["prefix"][0]
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        start = int(query.get("continuation-token", ["0"])[0])
        entries = "".join(
            f"<Contents><Key>{key}</Key><ETag>{self.etag(key).replace(chr(34), '&quot;')}</ETag>"
            f"<Size>{len(self.objects[key])}</Size></Contents>"
            for key in keys[start : start + self.page_size]
        )
        end = start + self.page_size
        more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < len(keys) else ""
        return f"<ListBucketResult>{entries}{more}</ListBucketResult>"

    def card(self):
        siblings = []
        for name, body in self.objects.items():
            blob = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False)
            sibling = {"rfilename": name, "size": len(body), "blobId": blob.hexdigest()}
            if name.endswith(".safetensors"):
                sibling["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
            siblings.append(sibling)
        return {"sha": COMMIT, "siblings": siblings}


class Server(http.server.ThreadingHTTPServer):
    """Takes connections of many threads at once: the kernel drops what the usual queue of 5 has no
    room for, and the client's next attempt comes after seconds."""

    request_queue_size = 128


def send(handler, status, body, headers=()):
    handler.send_response(status)
    for name, value in dict(headers).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    with contextlib.suppress(OSError):
        handler.wfile.write(body)


def status(code):
    """A fault: this status instead of the object."""

    def fault(handler, body, first):
        send(handler, code, b"slow down")
        return True

    return fault


def cut(handler, body, first):
    """A fault: the body ends in the middle, as the connection does."""
    if len(body) - first < 4:
        return False
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
    handler.send_header("Content-Length", str(len(body) - first))
    handler.end_headers()
    handler.wfile.write(body[first : first + (len(body) - first) // 2])
    handler.close_connection = True
    return True


def silent(handler, body, first):
    """A fault: the connection closes without an answer."""
    handler.close_connection = True
    return True
