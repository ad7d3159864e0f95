"""A Serve replica that owns one `ingle serve` process (process.py).

The replica handles no request: the front talks to the process (front.py).
"""

from typing import Any

import ray

from ingle.integrations.ray.process import IngleProcess


class Worker:
    """One worker. Serve calls the methods; all run on the replica's event loop."""

    def __init__(self, model: str, drain_s: float, settings: dict[str, Any]) -> None:
        self._process = IngleProcess(model, ray.util.get_node_ip_address(), drain_s, settings)

    async def record_replica_metadata(self) -> dict[str, str]:
        """Where the process listens. Serve asks once, before the replica takes requests.

        Errors: RuntimeError with what the process said instead of starting.
        """
        await self._process.start()
        return {"url": self._process.url}

    async def check_health(self) -> None:
        """Errors: RuntimeError if the process is not well; Serve then replaces the replica."""
        await self._process.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Running and waiting requests, for `wanted_workers`."""
        return await self._process.counts()

    async def record_routing_stats(self) -> dict[str, float]:
        """Their sum, for the router."""
        return {"requests": sum((await self._process.counts()).values())}

    async def url(self) -> str:
        """Where the process listens."""
        return self._process.url

    async def pid(self) -> int:
        """The process, for operators and tests."""
        return self._process.pid

    async def __del__(self) -> None:
        """Drains: the process refuses new requests and may finish old ones."""
        await self._process.stop()
