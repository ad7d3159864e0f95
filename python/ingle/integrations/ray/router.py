"""Chooses a worker by prefix, within Ray Serve's request router. A front's routing loop.

The front passes an `Ask`, which lives in the same process, instead of the request.
"""

from dataclasses import dataclass, field

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from ingle.integrations.affinity import Affinity, InFlight


@dataclass
class Ask:
    """What the front knows of a request that needs a worker."""

    keys: list[int]
    in_flight: InFlight
    """Of this front, by replica."""
    avoid: set[str] = field(default_factory=set)
    """Workers that have just failed it."""
    chosen: str | None = None
    """Where it counts. The front takes it back."""


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
        reported = {name: each.routing_stats.get("requests", 0) for name, each in by_name.items()}
        if ask.chosen is not None:
            ask.in_flight.leave(ask.chosen)  # Serve asks again.
        order = self._affinity.choose(ask.keys, ask.in_flight, reported, ask.avoid)
        ask.chosen = order[0]
        return [[by_name[name]] for name in order]


def ask_of(pending: PendingRequest | None) -> Ask | None:
    """What the front has passed; None for calls of other kinds.

    Not by its class: Serve may pickle this module by value, and a front's `Ask` is another class
    then.
    """
    return None if pending is None else pending.kwargs.get(ASK)


ASK = "ask"
"""The name under which a front passes its `Ask`."""
