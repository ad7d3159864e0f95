"""[8] Collects the events of a translated stream into one write. Event loop."""

from typing import Any

import msgspec


class EventBuffer:
    """Events that have not been sent yet, with HTTP chunk framing if the client needs it."""

    def __init__(self, chunked: bool) -> None:
        self._chunked = chunked
        self._out: list[bytes] = []

    def add(self, kind: str, document: dict[str, Any]) -> None:
        """One event with its name and its JSON."""
        self._out.append(
            b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(document))
        )

    def add_raw(self, block: bytes) -> None:
        """A block that is sent unchanged, such as a comment."""
        self._out.append(block + b"\n\n")

    def take(self) -> bytes:
        """Removes all events and returns their bytes; empty if there are none."""
        data = b"".join(self._out)
        self._out.clear()
        if not data or not self._chunked:
            return data
        return b"%x\r\n%b\r\n" % (len(data), data)
