"""Comparison programs that stream what a server would, and compute nothing.

`raw` is the floor: one thread, epoll, one send() an event. `aiohttp` is the plain way to write it
in Python: a queue and a task for each stream. Both answer POST /v1/completions with `max_tokens`
events of the same bytes that ingle sends, all streams at the same tick. `echo` sends a fixed answer
to each request of a fixed size. Each prints its port and serves until it is killed.

    python baselines.py raw|aiohttp --step-ms 6
    python baselines.py echo --request-bytes 300 --answer-bytes 500
"""

import argparse
import asyncio
import json
import select
import socket
import time

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n"
)
ID = '"id":"cmpl-00112233445566778899aabbccddeeff","object":"text_completion"'
EVENT = (
    f'data: {{{ID},"created":1790000000,"model":"demo","choices":[{{"index":0,"text":" word",'
    '"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
).encode()


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


FRAME = chunk(EVENT)


def step_s(full_step_s, num_streams):
    """Time of a step: with few streams it is shorter, as on a device."""
    return full_step_s * (0.4 + 0.6 * min(1.0, num_streams / 200))


def last_events(num_prompt_tokens, num_output_tokens):
    """The usage event and the end of a stream."""
    usage = {
        "prompt_tokens": num_prompt_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "completion_tokens": num_output_tokens,
    }
    event = f'data: {{{ID},"choices":[],"usage":{json.dumps(usage)}}}\n\n'
    return event.encode() + b"data: [DONE]\n\n"


def sizes(body):
    """Tokens in and out of a request; a word is a token."""
    request = json.loads(body)
    return request["prompt"].count(" ") + 1, request["max_tokens"]


class RawServer:
    """epoll, nothing else."""

    def __init__(self, step_s):
        self._step_s = step_s
        self._listener = listen()
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._connections = {}
        self._partial = {}
        self._streams = {}
        """Per descriptor: tokens left, and what ends the stream."""

    def run(self):
        due = time.monotonic()
        while True:
            # Asleep while nothing streams, else until the next tick.
            wait_s = max(0.0, due - time.monotonic()) if self._streams else -1
            for fd, _ in self._epoll.poll(wait_s):
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._read(fd)
            now = time.monotonic()
            if now >= due:
                self._tick()
                due = max(due + step_s(self._step_s, len(self._streams)), now)

    def _accept(self):
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fd = connection.fileno()
        self._connections[fd] = connection
        self._partial[fd] = b""
        self._epoll.register(fd, select.EPOLLIN)

    def _read(self, fd):
        data = self._connections[fd].recv(65536)
        if not data:
            self._epoll.unregister(fd)
            self._connections.pop(fd).close()
            self._streams.pop(fd, None)
            return
        data = self._partial[fd] + data
        head, found, body = data.partition(b"\r\n\r\n")
        if found and len(body) >= content_length(head):
            num_in, num_out = sizes(body)
            self._connections[fd].send(HEAD)
            self._streams[fd] = [num_out, chunk(last_events(num_in, num_out)) + b"0\r\n\r\n"]
            data = b""
        self._partial[fd] = data

    def _tick(self):
        for fd, stream in list(self._streams.items()):
            stream[0] -= 1
            if stream[0]:
                self._connections[fd].send(FRAME)
            else:
                self._connections[fd].send(FRAME + stream[1])
                del self._streams[fd]


def content_length(head):
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def aiohttp_server(full_step_s, port):
    """A queue a stream, filled at each tick; a handler that writes what comes out of it."""
    from aiohttp import web

    queues = {}
    woken = asyncio.Event()

    async def tick():
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not queues:
                woken.clear()
                await woken.wait()
                due = loop.time()
            for queue in list(queues.values()):
                queue.put_nowait(EVENT)
            due = max(due + step_s(full_step_s, len(queues)), loop.time())
            await asyncio.sleep(due - loop.time())

    async def completions(request):
        num_in, num_out = sizes(await request.read())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        queue = asyncio.Queue()
        queues[id(queue)] = queue
        woken.set()
        for _ in range(num_out):
            await response.write(await queue.get())
        del queues[id(queue)]
        await response.write(last_events(num_in, num_out))
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    listener = listen()
    await web.SockSite(runner, listener).start()
    port(listener)
    await tick()


def echo(listener, request_bytes, answer_bytes):
    """One connection at a time: a fixed answer for each request."""
    answer = b"x" * answer_bytes
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        missing = request_bytes
        while data := connection.recv(65536):
            missing -= len(data)
            if missing == 0:
                connection.send(answer)
                missing = request_bytes


def listen():
    return socket.create_server(("127.0.0.1", 0), backlog=1024)


def say_port(listener):
    print(listener.getsockname()[1], flush=True)  # noqa: T201 # This is the program's answer.


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["raw", "aiohttp", "echo"])
    parser.add_argument("--step-ms", type=float, default=6.0, help="with 200 streams")
    parser.add_argument("--request-bytes", type=int)
    parser.add_argument("--answer-bytes", type=int)
    options = parser.parse_args()
    if options.kind == "raw":
        server = RawServer(options.step_ms / 1e3)
        say_port(server._listener)
        server.run()
    elif options.kind == "aiohttp":
        import uvloop

        uvloop.run(aiohttp_server(options.step_ms / 1e3, say_port))
    else:
        listener = listen()
        say_port(listener)
        echo(listener, options.request_bytes, options.answer_bytes)


if __name__ == "__main__":
    main()
