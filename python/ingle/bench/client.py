"""One load process: keeps its share of the connections busy and notes when each event came.

Runs in a child process, so that the client's own work never delays its clock.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from ingle.bench.workload import Request

_DATA = b"data: "


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to ask; the same for every request of a run."""

    url: str
    model: str | None
    api_key: str | None
    chat: bool
    timeout_s: float
    new_connections: bool
    extra_body: dict[str, object]


@dataclass(slots=True)
class Outcome:
    """One request's times in seconds on the run's clock; `error` says what failed, if anything."""

    started_s: float
    wanted_tokens: int
    first_s: float | None = None
    last_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None


class _Stream:
    """Splits a response into SSE events and notes their times."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._rest = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Takes bytes as they came; all events in them share one arrival time."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(_DATA) and event != b"data: [DONE]":
                self._event(event[len(_DATA) :], now_s)

    def _event(self, payload: bytes, now_s: float) -> None:
        outcome = self._outcome
        # Decoding every event would cost the client more than the server: look at bytes first.
        if payload.startswith(b'{"error"'):
            outcome.error = payload[:200].decode(errors="replace")
            return
        if b'"usage":{' in payload or b'"usage": {' in payload:
            usage = json.loads(payload).get("usage") or {}
            outcome.num_prompt_tokens = usage.get("prompt_tokens", 0)
            outcome.num_output_tokens = usage.get("completion_tokens", 0)
        if b'"choices":[]' in payload or b'"choices": []' in payload:
            return
        if outcome.first_s is None:
            outcome.first_s = now_s
        elif outcome.last_s is not None:
            outcome.gaps_s.append(now_s - outcome.last_s)
        outcome.last_s = now_s


def _body(target: Target, request: Request) -> dict[str, object]:
    body: dict[str, object] = {
        "max_tokens": request.num_output_tokens,
        "temperature": 0.0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        **target.extra_body,
    }
    if target.model is not None:
        body["model"] = target.model
    if target.chat:
        body["messages"] = [{"role": "user", "content": request.prompt()}]
    else:
        body["prompt"] = request.prompt()
    return body


async def _ask(
    session: aiohttp.ClientSession, target: Target, request: Request, clock_start_s: float
) -> Outcome:
    body = _body(target, request)
    outcome = Outcome(time.perf_counter() - clock_start_s, request.num_output_tokens)
    path = "/v1/chat/completions" if target.chat else "/v1/completions"
    stream = _Stream(outcome)
    try:
        async with session.post(target.url + path, json=body) as response:
            if response.status != 200:
                text = (await response.text())[:200]
                outcome.error = f"HTTP {response.status}: {text}"
                return outcome
            async for data in response.content.iter_any():
                stream.feed(data, time.perf_counter() - clock_start_s)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        outcome.error = f"{type(error).__name__}: {error}"[:200]
        return outcome
    if outcome.error is None and (outcome.first_s is None or outcome.num_output_tokens == 0):
        outcome.error = "the stream held no token or no usage"
    return outcome


async def drive(
    target: Target,
    work: list[tuple[float, Request]],
    concurrency: int,
    on_end: Callable[[], None],
) -> list[Outcome]:
    """Sends each request at its due time (seconds), at most `concurrency` at once."""
    clock_start_s = time.perf_counter()
    outcomes: list[Outcome] = []
    queue = iter(work)
    connector = aiohttp.TCPConnector(limit=0, force_close=target.new_connections)
    timeout = aiohttp.ClientTimeout(total=target.timeout_s)
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else None
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers
    ) as session:

        async def worker() -> None:
            for due_s, request in queue:
                wait_s = due_s - (time.perf_counter() - clock_start_s)
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                outcomes.append(await _ask(session, target, request, clock_start_s))
                on_end()

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    return outcomes
