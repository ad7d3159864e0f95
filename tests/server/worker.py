"""A real `ingle serve` process for tests, and a small HTTP client that shows everything."""

import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = Path(__file__).parents[1] / "golden" / "models"
TINY = MODELS / "llama-tied-bf16"
START_LIMIT_S = 60.0
LIMIT_S = 30.0


class Worker:
    """One server process; its address is known once the constructor returns."""

    def __init__(self, *arguments, model=TINY, environment=None):
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 # Closed by __exit__.
        self.process = subprocess.Popen(
            [*self.command(model), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=os.environ | (environment or {}),
        )
        try:
            self.summary = self._read_summary()
        except BaseException:
            self.__exit__()
            raise
        found = re.search(r"^address +http://(\S+):(\d+)", self.summary, re.M)
        self.address = (found[1], int(found[2])) if found else None
        uds = re.search(r"^address +unix:(\S+),", self.summary, re.M)
        self.uds = uds[1] if uds else None

    def command(self, model):
        """What starts the server, without the arguments of this one."""
        return [sys.executable, "-m", "ingle", "serve", str(model), "--port", "0"]

    def _read_summary(self):
        text = b""
        deadline = time.monotonic() + START_LIMIT_S
        stdout = self.process.stdout.fileno()
        while not re.search(rb"^address .*\n", text, re.M):
            left = max(0.0, deadline - time.monotonic())
            ready = select.select([stdout], [], [], left)[0]
            part = os.read(stdout, 65536) if ready else b""
            assert part, f"no start: {text.decode()} {self.errors()}"
            text += part
        return text.decode()

    def errors(self):
        """What the process wrote to standard error."""
        self.log.seek(0)
        return self.log.read()

    @property
    def url(self):
        host, port = self.address
        return f"http://{host}:{port}"

    def connect(self):
        """A raw connection."""
        if self.uds:
            raw = socket.socket(socket.AF_UNIX)
            raw.settimeout(LIMIT_S)
            raw.connect(self.uds)
            return raw
        return socket.create_connection(self.address, timeout=LIMIT_S)

    def raw(self, data, until_close=True):
        """Sends bytes as they are; returns all that comes back until the server closes."""
        with self.connect() as connection:
            connection.sendall(data)
            if not until_close:
                return connection.recv(65536)
            parts = []
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(65536):
                    parts.append(part)
            return b"".join(parts)

    def request(self, method, path, body=None, headers=None):
        """One request on its own connection."""
        connection = http.client.HTTPConnection(*(self.address or ("x", 0)), timeout=LIMIT_S)
        if self.uds:
            connection.sock = self.connect()
        with contextlib.closing(connection):
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            sent = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, body, sent | (headers or {}))
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        return self.request("POST", path, body, **options)

    def complete(self, prompt="The quick", **fields):
        """A completion that must succeed, at temperature 0 unless said otherwise."""
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 8} | fields
        reply = self.post("/v1/completions", body)
        assert reply.status == 200, reply.body
        return reply.events if fields.get("stream") else reply.json

    def chat(self, content="Hello", **fields):
        """A chat that must succeed; `content` may be a list of messages."""
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 8} | fields
        reply = self.post("/v1/chat/completions", body)
        assert reply.status == 200, reply.body
        return reply.events if fields.get("stream") else reply.json

    def open_stream(self, path="/v1/completions", **fields):
        """Starts a stream on a raw connection; returns it after the first event."""
        body = {"prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 1000} | fields
        connection = self.connect()
        connection.sendall(http_request("POST", path, json.dumps(body).encode()))
        data = b""
        while b"data: " not in data:
            part = connection.recv(65536)
            assert part, data
            data += part
        assert data.startswith(b"HTTP/1.1 200"), data
        return connection

    def metric(self, name):
        """Sum of a metric's samples."""
        text = self.get("/metrics").body.decode()
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)
        assert found, f"no metric {name}"
        return sum(map(float, found))

    def health(self):
        return self.get("/health").json

    def wait_until_idle(self):
        """Returns when nothing runs, waits or holds blocks; fails after a second or so."""
        wait_for(lambda: self.is_idle(), 5.0, lambda: f"{self.health()}")

    def is_idle(self):
        health = self.health()
        return (
            health["running"] == health["waiting"] == 0
            and self.metric("vllm:num_requests_running") == 0
            and self.metric("vllm:num_requests_waiting") == 0
        )

    def stop(self, number=signal.SIGTERM):
        """Signals the process and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self):
        try:
            return self.process.wait(LIMIT_S)
        finally:
            self.close()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.log.close()


class Reply:
    """Status, headers and body of one answer."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object, after checking its shape."""
        document = self.json
        assert set(document) == {"error"}, document
        assert set(document["error"]) == {"message", "type", "param", "code"}, document
        assert self.headers["Content-Type"].startswith("application/json")
        return document["error"]

    @property
    def events(self):
        """The JSON events of a stream, after checking its framing."""
        return parse_events(self.body)


def parse_events(body):
    """Events between `data: ` and two line feeds; the last must be [DONE]."""
    assert b"\r" not in body
    blocks = body.split(b"\n\n")
    assert blocks[-1] == b""
    blocks = [block for block in blocks[:-1] if block != b":"]
    assert blocks[-1] == b"data: [DONE]", blocks[-1]
    assert all(block.startswith(b"data: ") for block in blocks)
    return [json.loads(block.removeprefix(b"data: ")) for block in blocks[:-1]]


def joined(events):
    """What a client makes of a stream: per choice index (text, finish_reason, number of ends)."""
    texts, ends = {}, {}
    for event in events:
        for choice in event["choices"]:
            index = choice["index"]
            text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            texts[index] = texts.get(index, "") + text
            if choice["finish_reason"] is not None:
                ends.setdefault(index, []).append(choice["finish_reason"])
    return {index: (texts[index], ends.get(index)) for index in sorted(texts)}


def whole(answer):
    """The same of a plain answer."""
    return {
        choice["index"]: (
            choice["text"] if "text" in choice else choice["message"]["content"],
            [choice["finish_reason"]],
        )
        for choice in answer["choices"]
    }


def http_request(method, path, body=b"", version="1.1", **headers):
    """A request as bytes; keyword `Content_Type` is the header Content-Type."""
    lines = [f"{method} {path} HTTP/{version}", "Host: test"]
    if body:
        headers = {"Content_Type": "application/json", "Content_Length": str(len(body))} | headers
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@contextlib.contextmanager
def with_templates(make_folder, device):
    """Makes servers of the tiny model with other templates; all must end well with the block."""
    workers = []

    def start(template):
        file = make_folder() / "chat.jinja"
        file.write_text(template)
        workers.append(Worker("--device", device, "--chat-template", file))
        return workers[-1]

    yield start
    for worker in workers:
        with worker:
            ended_well(worker)


@contextlib.contextmanager
def proxied(make, kind, folder):
    """A server behind what `make` starts, reached by `tcp` or `unix`; both must end well."""
    flags = ("--uds", folder / "ingle.sock") if kind == "unix" else ()
    with Worker("--device", "sim", "--max-num-seqs", "32", *flags) as worker:
        made = make(worker, folder)
        yield made
        ended_well(worker, made.stop)


def ended_well(worker, before=lambda: None):
    """Stops an idle server, after `before`: no request left, no error in its log."""
    worker.wait_until_idle()
    before()
    assert worker.stop() == 0, worker.errors()
    assert "Traceback" not in worker.errors(), worker.errors()


def wait_for(condition, limit_s, describe):
    """Polls until the condition holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.01)


def cpu_seconds(pid):
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def voluntary_switches(pid):
    """How often its threads went to sleep."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status") as status:
            total += next(int(line.split()[1]) for line in status if line.startswith("voluntary"))
    return total
