"""A client that sends requests at its own pace, whatever becomes of those before. Its own process.

    python open_loop.py PORT '{"rate": 400, "seconds": 5, "num_in": 32, "num_out": 64}'

Prints JSON: requests by status, tokens a second of those that were answered in full, and the times
of answers and refusals in ms, sorted. With `concurrency` instead of `rate`, so many are under way.
"""

import asyncio
import json
import sys
import time
from collections import Counter, deque

import uvloop

LIMIT_S = 60.0
MAX_IDLE_S = 60.0
"""The server closes what has been idle for longer."""


class Load:
    """One run."""

    def __init__(self, port, seconds, num_in, num_out, rate=None, concurrency=None):
        self._port, self._seconds = port, seconds
        self._rate, self._concurrency = rate, concurrency
        body = {"prompt": "word " * num_in, "max_tokens": num_out, "ignore_eos": True}
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        self._idle = deque()
        """Free connections with the time since when, the longest idle first."""
        self._num_out = num_out
        self.counts, self.tokens = Counter(), 0
        self.answers_ms, self.refusals_ms = [], []

    async def one(self):
        """One request on a connection that is free, or on a new one."""
        began = time.perf_counter()
        while self._idle and began - self._idle[0][2] > MAX_IDLE_S:
            self._idle.popleft()[1].close()
        if self._idle:
            reader, writer, _ = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = next(
            line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        await reader.readexactly(int(length.partition(b":")[2]))
        ended = time.perf_counter()
        self._idle.append((reader, writer, ended))
        self.counts[status] += 1
        if status == 429:
            self.refusals_ms.append(1e3 * (ended - began))
        elif status == 200:
            self.answers_ms.append(1e3 * (ended - began))
            self.tokens += self._num_out * (ended <= self._end)
        return status

    async def run(self):
        began = time.perf_counter()
        self._end = began + self._seconds
        async with asyncio.timeout(self._seconds + LIMIT_S), asyncio.TaskGroup() as group:
            if self._rate is None:
                for _ in range(self._concurrency):
                    group.create_task(self._one_after_the_other())
            else:
                for number in range(int(self._rate * self._seconds)):
                    wait_s = began + number / self._rate - time.perf_counter()
                    if wait_s > 0:
                        await asyncio.sleep(wait_s)
                    group.create_task(self.one())
        for _, writer, _ in self._idle:
            writer.close()
        return {
            "counts": self.counts,
            "tokens_per_s": self.tokens / self._seconds,
            "answers_ms": sorted(self.answers_ms),
            "refusals_ms": sorted(self.refusals_ms),
        }

    async def _one_after_the_other(self):
        while time.perf_counter() < self._end:
            await self.one()


if __name__ == "__main__":
    load = Load(int(sys.argv[1]), **json.loads(sys.argv[2]))
    print(json.dumps(uvloop.run(load.run())))  # noqa: T201 # The test reads it.
