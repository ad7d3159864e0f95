"""A Serve replica that owns one `ingle serve` process: starts it, watches it, drains it.

A process of its own keeps the lock-down, which a process that runs Ray cannot have, and dies alone.
The replica handles no request: the front talks to the process (front.py).
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import signal
import socket
import sys
import urllib.request
from typing import Any

import ray

log = logging.getLogger("ray.serve")


class Worker:
    """One worker. Serve calls the methods; all run on the replica's event loop."""

    def __init__(self, model: str, drain_s: float, settings: dict[str, Any]) -> None:
        """Blocks until the worker can answer. Errors: RuntimeError with what it said instead."""
        self._host = ray.util.get_node_ip_address()
        self._port = free_port(self._host)
        self._drain_s = drain_s
        self._command = [
            *(sys.executable, "-m", "ingle", "serve", model),
            *("--host", self._host, "--port", str(self._port)),
            *("--shutdown-timeout", str(drain_s)),
            *flags(settings),
        ]
        self._num_deaths = 0
        self._is_leaving = False
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def _start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        self._process = process
        said: list[str] = []
        while process.stdout is not None:
            line = (await process.stdout.readline()).decode(errors="replace")
            said.append(line)
            if line.startswith("address"):
                return
            if not line:
                code = await process.wait()
                raise RuntimeError(f"ingle serve ended with code {code}: {''.join(said)[-2000:]}")

    async def record_replica_metadata(self) -> dict[str, str]:
        """Where the process listens. Serve asks once, before the replica takes requests."""
        await self._start()
        self._watch = asyncio.create_task(self._restart_when_dead())
        return {"url": await self.url()}

    async def _restart_when_dead(self) -> None:
        """A dead process starts again at its address: faster than a new replica."""
        while self._process is not None:
            code = await self._process.wait()
            if self._is_leaving:
                return
            self._num_deaths += 1
            log.error("the ingle process ended with code %s", code)
            if self._num_deaths >= MOST_DEATHS:
                return
            try:
                await self._start()
            except RuntimeError as error:
                log.error("%s", error)
                return

    async def check_health(self) -> None:
        """Errors: RuntimeError if the process is not well; Serve then replaces the replica."""
        if self._watch is not None and self._watch.done():
            raise RuntimeError(f"the ingle process died {self._num_deaths} times")
        if self._process is not None and self._process.returncode is None:
            await asyncio.to_thread(self._get, "/health")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Running and waiting requests, for `wanted_workers`."""
        return await self._counts()

    async def record_routing_stats(self) -> dict[str, float]:
        """Their sum, for the router."""
        return {"requests": sum((await self._counts()).values())}

    async def url(self) -> str:
        """Where the process listens."""
        return f"http://{self._host}:{self._port}"

    async def pid(self) -> int:
        """The process, for operators and tests."""
        if self._process is None:
            raise RuntimeError("the ingle process has not started")
        return self._process.pid

    async def _counts(self) -> dict[str, float]:
        try:
            health = json.loads(await asyncio.to_thread(self._get, "/health"))
        except OSError:
            return {"running": 0.0, "waiting": 0.0}  # It starts again.
        return {name: float(health.get(name, 0)) for name in ("running", "waiting")}

    def _get(self, path: str) -> bytes:
        url = f"http://{self._host}:{self._port}{path}"
        with urllib.request.urlopen(url, timeout=5) as response:  # Our own address.
            return bytes(response.read())

    async def __del__(self) -> None:
        """Drains: the process refuses new requests and may finish old ones."""
        self._is_leaving = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self._drain_s + 5)
        except TimeoutError:
            process.kill()


def end_with_parent() -> None:
    """Makes the new process get SIGTERM when this one dies, however that happens."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def flags(settings: dict[str, Any]) -> list[str]:
    """Settings as flags of `ingle serve`. True and False set and unset a flag."""
    found = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if value is True:
            found.append(f"--{flag}")
        elif value is False:
            found.append(f"--no-{flag}")
        elif value is not None:
            found += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return found


def free_port(host: str) -> int:
    """A port that is free now. It stays the worker's over restarts."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


MOST_DEATHS = 3
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)
