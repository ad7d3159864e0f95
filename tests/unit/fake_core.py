"""A stand-in for the core in unit tests: answers on request and records its calls."""

import contextlib
import itertools
import json
import os

from ingle import _core


class FakeCore:
    """Has the methods of `_core.Engine` that the code under test uses."""

    def __init__(self):
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.requests = {}
        self.aborted = []
        self.attached = []
        self.pinged = []
        self.events = []
        self.on_submit = lambda key, request: None
        self.keys = itertools.count(1)
        self.is_draining = False
        self.is_shut_down = False
        self.health_status = "ok"

    def event_fd(self):
        return self.fd

    def submit(self, request):
        key = next(self.keys)
        self.requests[key] = json.loads(request)
        self.on_submit(key, self.requests[key])
        return key

    submit_if_brief = submit

    def abort(self, key):
        self.aborted.append(key)

    def attach_socket(self, key, fd, frames_seen, head):
        self.attached.append((key, fd, frames_seen, head))

    def ping(self, key):
        self.pinged.append(key)

    def push(self, key, kind, payload=None):
        """Makes one event that `drain` will hand out."""
        self.events.append((key, kind, payload))
        os.eventfd_write(self.fd, 1)

    def drain(self):
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        events, self.events = self.events, []
        return events

    def answer(self, key, texts=("a", "b"), usage=(3, 0, 2)):
        """Pushes a whole answer in delta format."""
        for number, text in enumerate(texts):
            last = number == len(texts) - 1
            delta = (0, text, [number], None, "stop" if last else None, None)
            self.push(key, _core.DELTA, delta)
        self.push(key, _core.END, usage)

    def info(self):
        return json.dumps({"max_model_len": 64, "vocab_size": 400, "num_engines": 1}).encode()

    def memory_room(self, enough):
        return 1 << 40

    def health(self):
        return json.dumps({"status": self.health_status}).encode()

    def metrics(self, exemplars=False):
        return b"# fake\n"

    def start_drain(self):
        self.is_draining = True

    def shutdown(self):
        self.is_shut_down = True
