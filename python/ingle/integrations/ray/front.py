"""The deployment that clients reach: reads a request, chooses a worker, passes its bytes on.

Event loop of a Serve replica. A request's bytes go from the worker's socket to Ray's proxy without
a second hop between actors. A worker that fails before its first byte costs a retry elsewhere; one
that fails later ends its own streams, with an error event.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ingle.integrations.affinity import InFlight, prompt_keys
from ingle.integrations.ray.router import ASK, Ask

SESSION_HEADERS = ("x-session-affinity", "x-session-id", "x-session-token")
NOT_PASSED = {"host", "content-length", "connection", "transfer-encoding", "keep-alive", "date"}
MOST_TRIES = 4


class Front:
    """Passes requests to workers."""

    def __init__(self, workers: DeploymentHandle) -> None:
        self._workers = workers
        self._in_flight = InFlight()
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, request: Request) -> Response:
        """One HTTP request."""
        body = await request.body()
        headers = {k: v for k, v in request.headers.items() if k.lower() not in NOT_PASSED}
        named = (request.headers.get(name) for name in SESSION_HEADERS)
        session = next(filter(None, named), None)
        key = request.headers.get("authorization") or request.headers.get("x-api-key")
        ask = Ask(prompt_keys(body, session, key) if body else [], self._in_flight)
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        for last in (*(False,) * (MOST_TRIES - 1), True):
            name, url = await self._choose(ask)
            passed_on = False
            try:
                answer = await self._client().request(
                    request.method, url + path, data=body or None, headers=headers
                )
                if answer.status == 503 and not last:
                    # It drains, or has too little memory: another one may take the request.
                    answer.release()
                    continue
                response = StreamingResponse(
                    self._relay(answer, name),
                    status_code=answer.status,
                    headers={
                        k: v for k, v in answer.headers.items() if k.lower() not in NOT_PASSED
                    },
                )
                passed_on = True
                return response
            except aiohttp.ClientError as error:
                if last:
                    return failure(502, f"no worker answers: {type(error).__name__}")
                # A worker that starts again is back in a second or so.
                await asyncio.sleep(RETRY_S)
            finally:
                if not passed_on:
                    self._in_flight.leave(name)
                ask.avoid.add(name)
        return failure(503, "no worker takes the request")

    async def _choose(self, ask: Ask) -> tuple[str, str]:
        """A worker's replica and URL. Only chosen, not reserved: its queue is its own affair."""
        async with self._workers.choose_replica(**{ASK: ask}, _reserve=False) as chosen:
            name = chosen._replica.replica_id.unique_id
            if ask.chosen != name:
                # Serve took another one than ours, or the router is not ours.
                if ask.chosen is not None:
                    self._in_flight.leave(ask.chosen)
                self._in_flight.enter(name)
            ask.chosen = None
            return name, chosen.replica_metadata["url"]

    async def _relay(self, answer: aiohttp.ClientResponse, name: str) -> AsyncIterator[bytes]:
        try:
            async for part in answer.content.iter_any():
                yield part
        except aiohttp.ClientError:
            if answer.content_type == "text/event-stream":
                yield b"data: " + error_body("the worker has died") + b"\n\n"
            else:
                raise
        finally:
            answer.close()
            self._in_flight.leave(name)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, connect=5),
                auto_decompress=False,
            )
        return self._session


def failure(status: int, message: str) -> Response:
    """An error in OpenAI's shape."""
    return Response(error_body(message), status, media_type="application/json")


def error_body(message: str) -> bytes:
    """The same as JSON."""
    error: dict[str, Any] = {"message": message, "type": "server_error", "param": None}
    return json.dumps({"error": error | {"code": "worker_lost"}}).encode()


RETRY_S = 0.2
