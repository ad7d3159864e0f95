"""Which worker most likely has a prompt in its prefix cache. Plain data, no I/O; one thread.

A router that sees requests and not tokens knows prompts as text. It keeps, for each chunk of each
prompt that it has sent, where it sent it. Like the router between the engines of one process, it
gives up an overlap for a worker that is clearly less busy.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec import Raw

CHUNK_BYTES = 512
"""Of a prompt's text: about a hundred tokens, so that a chunk covers a few KV blocks."""
MOST_CHUNKS = 256
"""Of one prompt. What is behind them says little about which worker to choose."""
MOST_KEYS = 1 << 17
"""That the table remembers, the oldest forgotten first."""


class Asked(msgspec.Struct):
    """The parts of a request that its prompt depends on."""

    messages: Raw = Raw(b"")
    prompt: Raw = Raw(b"")
    input: Raw = Raw(b"")
    system: Raw = Raw(b"")
    tools: Raw = Raw(b"")
    cache_salt: str | None = None


DECODER = msgspec.json.Decoder(Asked)


def prompt_keys(body: bytes, session: str | None = None, tenant: str | None = None) -> list[int]:
    """A key for each chunk of a request's prompt; equal keys mean equal prompts up to there.

    `session` comes before the text: requests of a session belong together. A body that is no such
    request has no keys, and the worker says what is wrong with it. Any size of body is hashed once.
    """
    try:
        asked = DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return []
    root = hashlib.blake2b(digest_size=8)
    for part in (tenant, asked.cache_salt):
        root.update(b"\1" + part.encode() if part else b"\0")
    keys: list[int] = []
    if session:
        named = root.copy()
        named.update(b"session" + session.encode("utf-8", "surrogateescape"))
        return [int.from_bytes(named.digest(), "big")]
    parts = (asked.tools, asked.system, asked.messages, asked.prompt, asked.input)
    # The end of a list is no part of the next turn's text: `]` and quotes are cut off.
    text = b"".join(bytes(part).rstrip(b']}" \n') for part in parts)
    for start in range(0, min(len(text), CHUNK_BYTES * MOST_CHUNKS), CHUNK_BYTES):
        chunk = text[start : start + CHUNK_BYTES]
        if len(chunk) < CHUNK_BYTES and keys:
            break
        root.update(chunk)
        keys.append(int.from_bytes(root.copy().digest(), "big"))
    return keys


class InFlight:
    """How many requests a front has with each worker. Any thread."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def of(self, worker: str) -> int:
        """Requests that this worker has from here."""
        return self._counts.get(worker, 0)

    def enter(self, worker: str) -> None:
        """One more. At the choice itself: requests that come at once must see each other."""
        with self._lock:
            self._counts[worker] = self._counts.get(worker, 0) + 1

    def leave(self, worker: str) -> None:
        """One less."""
        with self._lock:
            left = self._counts.get(worker, 0) - 1
            if left > 0:
                self._counts[worker] = left
            else:
                self._counts.pop(worker, None)


class Affinity:
    """Where the chunks of past prompts went."""

    def __init__(self, slack: int = 4) -> None:
        """`slack`: so many more requests than the least busy worker may one have for an overlap."""
        self._slack = slack
        self._owners: OrderedDict[int, str] = OrderedDict()

    def order(
        self, keys: list[int], loads: Mapping[str, float], avoid: Collection[str] = ()
    ) -> list[str]:
        """The workers, the best one first. `loads`: how many requests each has.

        `avoid`: workers that come last whatever they have.
        """
        overlaps = dict.fromkeys(loads, 0)
        for number, key in enumerate(keys):
            owner = self._owners.get(key)
            if owner is None:
                break
            if owner in overlaps:
                overlaps[owner] = number + 1
        least = min(loads.values(), default=0)

        def rank(name: str) -> tuple[Any, ...]:
            is_busy = loads[name] > 2 * least + self._slack
            return (name in avoid, is_busy, -overlaps[name], loads[name], name)

        return sorted(loads, key=rank)

    def choose(
        self,
        keys: list[int],
        in_flight: InFlight,
        reported: Mapping[str, float],
        avoid: Collection[str] = (),
    ) -> list[str]:
        """`order` for a request that goes to the first one, where it counts from now on.

        `reported`: what each worker says of itself; what is in flight from here counts if more.
        """
        loads = {name: max(float(own), in_flight.of(name)) for name, own in reported.items()}
        order = self.order(keys, loads, avoid)
        if order:
            self.note(keys, order[0])
            in_flight.enter(order[0])
        return order

    def note(self, keys: list[int], worker: str) -> None:
        """A prompt of these keys goes to this worker."""
        for key in keys:
            self._owners[key] = worker
            self._owners.move_to_end(key)
        while len(self._owners) > MOST_KEYS:
            self._owners.popitem(last=False)
