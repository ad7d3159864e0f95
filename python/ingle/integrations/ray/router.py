"""Chooses a worker by prefix, within Ray Serve's request router. A front's routing loop.

The front passes an `Ask`, which lives in the same process, instead of the request.
"""

from dataclasses import dataclass, field
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from ingle.integrations.affinity import Affinity


@dataclass
class Ask:
    """What the front knows of a request that needs a worker."""

    keys: list[int]
    in_flight: dict[str, int]
    """Requests that this front has with each worker, by replica."""
    avoid: set[str] = field(default_factory=set)
    """Workers that have just failed it."""


class PrefixRouter(RequestRouter):  # type: ignore[misc] # Ray has no types.
    """The worker that has most of the prompt, unless it is much busier than another."""

    def initialize_state(self, slack: int = 4) -> None:
        """`slack`: see `Affinity`."""
        self._affinity = Affinity(slack)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """All candidates in order of preference."""
        ask = ask_of(pending_request)
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        if ask is None or not by_name:
            return [list(candidate_replicas)] if by_name else []
        loads = {name: load(replica, ask.in_flight) for name, replica in by_name.items()}
        order = self._affinity.order(ask.keys, loads, ask.avoid)
        self._affinity.note(ask.keys, order[0])
        return [[by_name[name]] for name in order]


def ask_of(pending: PendingRequest | None) -> Ask | None:
    """What the front has passed; None for calls of other kinds."""
    first: Any = pending.args[0] if pending is not None and pending.args else None
    return first if isinstance(first, Ask) else None


def load(replica: RunningReplica, in_flight: dict[str, int]) -> float:
    """Requests that a worker has: its own count of the last second, or ours where that is more."""
    own = in_flight.get(replica.replica_id.unique_id, 0)
    return max(float(replica.routing_stats.get("requests", 0)), float(own))
