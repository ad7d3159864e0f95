"""One `ingle serve` process that a Serve replica owns: started, watched, started again, drained.

A process of its own keeps the lock-down, which a process that runs Ray cannot have, and dies alone.
Event loop of the replica.
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
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("ray.serve")


class IngleProcess:
    """The process, at an address that it keeps over restarts."""

    def __init__(self, model: str, host: str, drain_s: float, settings: Mapping[str, Any]) -> None:
        """`settings`: those of `ingle serve`, by their Python names.

        `drain_s`: how long requests may run on after `stop`.
        """
        self._host = host
        self._port = free_port(host)
        self._drain_s = drain_s
        self._command = [
            *(sys.executable, "-m", "ingle", "serve", model),
            *("--host", host, "--port", str(self._port)),
            *("--shutdown-timeout", str(drain_s)),
            *flags(settings),
        ]
        self._num_deaths = 0
        self._counted = {"running": 0.0, "waiting": 0.0}
        self._is_leaving = False
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self._host}:{self._port}"

    @property
    def pid(self) -> int:
        """For operators and tests. Errors: RuntimeError before `start`."""
        if self._process is None:
            raise RuntimeError("the ingle process has not started")
        return self._process.pid

    async def start(self) -> None:
        """Returns once it can answer. Errors: RuntimeError with what it said instead."""
        await self._start()
        self._watch = asyncio.create_task(self._restart_when_dead())

    async def check(self) -> None:
        """Errors: RuntimeError or OSError if it is not well."""
        if self._watch is not None and self._watch.done():
            raise RuntimeError(f"the ingle process died {self._num_deaths} times")
        if self._process is not None and self._process.returncode is None:
            await asyncio.to_thread(self._get, "/health")

    async def counts(self) -> dict[str, float]:
        """Running and waiting requests."""
        try:
            health = json.loads(await asyncio.to_thread(self._get, "/health"))
        except OSError:
            # It starts again, or is too busy to answer in time: no reason to take workers away.
            return self._counted
        self._counted = {name: float(health.get(name, 0)) for name in ("running", "waiting")}
        return self._counted

    async def stop(self) -> None:
        """Drains: it refuses new requests and may finish old ones."""
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

    def _get(self, path: str) -> bytes:
        url = f"http://{self._host}:{self._port}{path}"
        with urllib.request.urlopen(url, timeout=5) as response:  # Our own address.
            return bytes(response.read())


def end_with_parent() -> None:
    """Makes the new process get SIGTERM when this one dies, however that happens."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def flags(settings: Mapping[str, Any]) -> list[str]:
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
    """A port that is free now. It stays the process's over restarts."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


MOST_DEATHS = 3
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)
