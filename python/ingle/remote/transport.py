"""GETs over HTTP for model files: redirects, retries, and bodies that continue where they broke.

Any thread; blocking. A connection for each request: parts are large.
"""

import http.client
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

from ingle.errors import ModelError

T = TypeVar("T")
Headers = Mapping[str, str]
Sign = Callable[[str], dict[str, str]]
"""The headers that a GET of this URL needs, such as a signature. Not sent to other hosts."""


@dataclass(frozen=True)
class Transport:
    """How to reach one store."""

    sign: Sign
    timeout_s: float = 30.0
    context: ssl.SSLContext | None = field(default=None, compare=False)

    def read(self, url: str, most_bytes: int) -> bytes:
        """A small body. Errors: ModelError."""

        def once() -> bytes:
            with self._open(url, {}) as response:
                body = response.read(most_bytes + 1)
                if len(body) > most_bytes:
                    raise ModelError(f"{url}: the answer has more than {most_bytes} bytes")
                return body

        return self._retry(url, once, lambda: 0)

    def read_range(
        self, url: str, etag: str, first: int, last: int, take: Callable[[int, bytes], None]
    ) -> None:
        """Gives bytes `first` to `last` to `take`, with offsets; goes on where a body broke off.

        Errors: ModelError, also if the object has changed.
        """
        at = first

        def once() -> None:
            nonlocal at
            wanted = {"Range": f"bytes={at}-{last}"} | ({"If-Match": etag} if etag else {})
            with self._open(url, wanted) as response:
                check_part(url, response, etag, at, last)
                while at <= last:
                    data = response.read(min(CHUNK_BYTES, last + 1 - at))
                    if not data:
                        raise http.client.IncompleteRead(b"", last + 1 - at)
                    take(at, data)
                    at += len(data)

        self._retry(url, once, lambda: at)

    def _retry(self, url: str, once: Callable[[], T], progress: Callable[[], int]) -> T:
        """Calls `once` until it succeeds; gives up after some failures without progress."""
        failures, before = 0, progress()
        while True:
            try:
                return once()
            except (OSError, http.client.HTTPException, TryAgainError) as error:
                now = progress()
                failures = 1 if now > before else failures + 1
                before = now
                if failures >= MOST_FAILURES:
                    raise ModelError(f"{url}: {reason(error)} ({failures} times)") from error
                delay = min(FIRST_WAIT_S * 2 ** (failures - 1), MOST_WAIT_S)
                time.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 # Only spreads retries.

    def _open(self, url: str, headers: Headers) -> "Response":
        start = urlsplit(url)
        sent = {**headers, **self.sign(url)}
        for _ in range(MOST_REDIRECTS):
            response = Response(self._connect(url), url, sent)
            location = response.raw.getheader("Location")
            if response.status not in REDIRECTS or location is None:
                response.check()
                return response
            response.close()
            url = urljoin(url, location)
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or (
                start.scheme == "https" and parts.scheme == "http"
            ):
                raise ModelError(f"{start.geturl()}: leads to {parts.scheme}://, which is refused")
            if parts.netloc != start.netloc:
                # What opens one host must not reach another one.
                sent = dict(headers)
        raise ModelError(f"{start.geturl()}: more than {MOST_REDIRECTS} redirects")

    def _connect(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.netloc, timeout=self.timeout_s)
        context = self.context or ssl.create_default_context()
        return http.client.HTTPSConnection(parts.netloc, timeout=self.timeout_s, context=context)


class TryAgainError(Exception):
    """A status after which the same request may succeed."""


class Response:
    """One answer and its connection."""

    def __init__(self, connection: http.client.HTTPConnection, url: str, headers: Headers) -> None:
        self._connection = connection
        self.url = url
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("GET", target or "/", headers=dict(headers))
            self.raw = connection.getresponse()
        except BaseException:
            connection.close()
            raise
        self.status = self.raw.status
        self.read = self.raw.read

    def check(self) -> None:
        """Errors: TryAgainError, ModelError unless it is a success."""
        if self.status in (200, 206):
            return
        shown = f"HTTP {self.status} {self.raw.reason}"
        self.close()
        if self.status in RETRIED:
            raise TryAgainError(shown)
        if self.status == 412:
            raise ModelError(f"{self.url}: has changed while it was fetched")
        hint = "; are the credentials right?" if self.status in (401, 403) else ""
        raise ModelError(f"{self.url.partition('?')[0]}: {shown}{hint}")

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def check_part(url: str, response: Response, etag: str, first: int, last: int) -> None:
    """Errors: ModelError unless it is that part of that object."""
    found = response.raw.getheader("ETag")
    if etag and found is not None and found != etag:
        raise ModelError(f"{url}: has changed while it was fetched: {found}, not {etag}")
    if response.status == 200 and first == 0:
        length = response.raw.getheader("Content-Length")
        if length == str(last + 1):
            return
    shown = response.raw.getheader("Content-Range") or ""
    if response.status != 206 or not shown.startswith(f"bytes {first}-{last}/"):
        given = f"status {response.status}, Content-Range {shown!r}"
        raise ModelError(f"{url}: bytes {first} to {last} were asked for, and {given} came")


def reason(error: Exception) -> str:
    """What went wrong, for people."""
    if isinstance(error, http.client.IncompleteRead):
        return "the body was cut off"
    return str(error) or type(error).__name__


def pieces(size: int, part_bytes: int) -> Iterator[tuple[int, int]]:
    """First and last byte of each part."""
    for first in range(0, size, part_bytes):
        yield first, min(first + part_bytes, size) - 1


CHUNK_BYTES = 1 << 20
MOST_FAILURES = 6
FIRST_WAIT_S = 0.2
"""Before the first retry; doubles with each that follows."""
MOST_WAIT_S = 5.0
MOST_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
RETRIED = (408, 425, 429, 500, 502, 503, 504)
