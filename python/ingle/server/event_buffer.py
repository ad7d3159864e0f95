"""[8] The events of a stream that Python translates, on their way into one write. Event loop."""

from typing import Any

import msgspec


class EventBuffer:
    """Collects events until they are taken, with HTTP chunk framing where that is needed."""

    def __init__(self, chunked: bool) -> None:
        self._chunked = chunked
        self._out: list[bytes] = []

    def add(self, kind: str, document: dict[str, Any]) -> None:
        """One event with its name and its JSON."""
        self._out.append(
            b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(document))
        )

    def add_raw(self, block: bytes) -> None:
        """A block that is sent as it is, such as a comment."""
        self._out.append(block + b"\n\n")

    def take(self) -> bytes:
        """All of it as bytes for the socket; empty if there is nothing."""
        data = b"".join(self._out)
        self._out.clear()
        if not data or not self._chunked:
            return data
        return b"%x\r\n%b\r\n" % (len(data), data)
