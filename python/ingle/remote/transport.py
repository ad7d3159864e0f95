"""GETs over HTTP for model files: redirects, retries, and bodies that continue where they broke.

Any thread; blocking. A connection for each request: parts are large.
"""

import contextlib
import http.client
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, urljoin, urlsplit

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
    encrypted: set[str] = field(default_factory=set, compare=False)
    """URLs of objects that S3 keeps under a key of its own: their ETag is no MD5."""

    def read(self, url: str, most_bytes: int) -> bytes:
        """A small body. Errors: ModelError."""

        def once() -> bytes:
            with self._open(url, {}) as response:
                pace, body = Pace(), bytearray()
                while data := response.read1(CHUNK_BYTES):
                    body += data
                    if len(body) > most_bytes:
                        raise ModelError(f"{url}: the answer has more than {most_bytes} bytes")
                    pace.add(len(data))
                promised = response.raw.getheader("Content-Length")
                if promised is not None and promised != str(len(body)):
                    raise http.client.IncompleteRead(b"")
                return bytes(body)

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
                if response.is_encrypted():
                    self.encrypted.add(url)
                pace = Pace()
                while at <= last:
                    data = response.read1(min(CHUNK_BYTES, last + 1 - at))
                    if not data:
                        raise http.client.IncompleteRead(b"", last + 1 - at)
                    take(at, data)
                    at += len(data)
                    pace.add(len(data))

        self._retry(url, once, lambda: at)

    def _retry(self, url: str, once: Callable[[], T], progress: Callable[[], int]) -> T:
        """Calls `once` until it succeeds; gives up after some failures without progress."""
        failures, before = 0, progress()
        while True:
            try:
                return once()
            except (OSError, http.client.HTTPException, TryAgainError) as error:
                now = progress()
                # Bytes that drip are no progress.
                is_better = now > before and not isinstance(error, TooSlowError)
                failures = 1 if is_better else failures + 1
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
            url = followed(start.geturl(), url, location)
            if urlsplit(url).netloc != start.netloc:
                # What opens one host must not reach another one.
                sent = dict(headers)
        raise ModelError(f"{start.geturl()}: more than {MOST_REDIRECTS} redirects")

    def _connect(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.netloc, timeout=self.timeout_s)
        context = self.context or ssl.create_default_context()
        return http.client.HTTPSConnection(parts.netloc, timeout=self.timeout_s, context=context)


def followed(start: str, url: str, location: str) -> str:
    """Where a redirect of `url` leads, on the way that began at `start`.

    Errors: ModelError unless it is an address, and as safe as the first one.
    """
    try:
        # Headers are bytes, which http.client has read as Latin-1.
        target = urljoin(url, quote(location.encode("latin-1"), safe=KEPT))
        parts = urlsplit(target)
        is_address = bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        raise ModelError(f"{start}: leads to what is no address") from None
    is_less = start.startswith("https:") and parts.scheme == "http"
    if parts.scheme not in ("http", "https") or is_less:
        raise ModelError(f"{start}: leads to {parts.scheme[:20]}://, which is refused")
    if not is_address:
        raise ModelError(f"{start}: leads to what is no address")
    return target


class TryAgainError(Exception):
    """A status after which the same request may succeed."""


class TooSlowError(TryAgainError):
    """An answer that comes in drops: each read ends in time, and all of them never."""


class Pace:
    """How fast a body comes."""

    def __init__(self) -> None:
        self._since, self._num_bytes = time.monotonic(), 0

    def add(self, num_bytes: int) -> None:
        """So many have come. Errors: TooSlowError."""
        self._num_bytes += num_bytes
        now = time.monotonic()
        if now - self._since < SLOW_S:
            return
        if self._num_bytes < SLOW_BYTES:
            raise TooSlowError(f"{self._num_bytes} bytes came in {now - self._since:.0f} s")
        self._since, self._num_bytes = now, 0


class Response:
    """One answer and its connection."""

    def __init__(self, connection: http.client.HTTPConnection, url: str, headers: Headers) -> None:
        self._connection = connection
        self.url = url
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("GET", target or "/", headers=dict(headers))
            with head_deadline(connection):
                self.raw = connection.getresponse()
        except BaseException:
            connection.close()
            raise
        self.status = self.raw.status
        self.read1 = self.raw.read1

    def check(self) -> None:
        """Errors: TryAgainError, ModelError unless it is a success."""
        if self.status in (200, 206):
            return
        shown = f"HTTP {self.status} {printable(self.raw.reason)}"
        self.close()
        if self.status in RETRIED:
            raise TryAgainError(shown)
        if self.status == 412:
            raise ModelError(f"{self.url.partition('?')[0]}: has changed while it was fetched")
        hint = "; are the credentials right?" if self.status in (401, 403) else ""
        raise ModelError(f"{self.url.partition('?')[0]}: {shown}{hint}")

    def is_encrypted(self) -> bool:
        """Whether it is of an object that S3 encrypts with KMS or the client's key."""
        kind = self.raw.getheader("x-amz-server-side-encryption", "")
        by_client = self.raw.getheader("x-amz-server-side-encryption-customer-algorithm")
        return kind.startswith("aws:kms") or by_client is not None

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def head_deadline(connection: http.client.HTTPConnection) -> Iterator[None]:
    """Ends the connection unless the body leaves in time: http.client would take heads that drip,
    and status 100 without end. Errors: TooSlowError."""
    expired = threading.Event()

    def end() -> None:
        expired.set()
        if connection.sock is not None:
            with contextlib.suppress(OSError):
                # Not TLS's own method, which another thread must not call.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    timer = threading.Timer(HEAD_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if expired.is_set():
            raise TooSlowError(f"the head of the answer took longer than {HEAD_S:g} s") from None
        raise
    finally:
        timer.cancel()


def printable(text: str) -> str:
    """What a server says, for a log."""
    return "".join(each for each in text[:MOST_SHOWN] if each.isprintable())


def check_part(url: str, response: Response, etag: str, first: int, last: int) -> None:
    """Errors: ModelError unless it is that part of that object."""
    found = response.raw.getheader("ETag")
    if etag and found is not None and found != etag:
        raise ModelError(f"{url}: has changed while it was fetched: {printable(found)}, not {etag}")
    if response.status == 200 and first == 0:
        length = response.raw.getheader("Content-Length")
        if length == str(last + 1):
            return
    shown = response.raw.getheader("Content-Range") or ""
    if response.status != 206 or not shown.startswith(f"bytes {first}-{last}/"):
        given = f"status {response.status}, Content-Range {shown[:MOST_SHOWN]!r}"
        raise ModelError(f"{url}: bytes {first} to {last} were asked for, and {given} came")


def reason(error: Exception) -> str:
    """What went wrong, for people."""
    if isinstance(error, http.client.IncompleteRead):
        return "the body was cut off"
    return printable(str(error)) or type(error).__name__


def pieces(size: int, part_bytes: int) -> Iterator[tuple[int, int]]:
    """First and last byte of each part."""
    for first in range(0, size, part_bytes):
        yield first, min(first + part_bytes, size) - 1


CHUNK_BYTES = 1 << 20
MOST_FAILURES = 6
FIRST_WAIT_S = 0.2
"""Before the first retry; doubles with each that follows."""
MOST_WAIT_S = 5.0
HEAD_S = 60.0
"""For status and headers."""
SLOW_S = 30.0
SLOW_BYTES = 30 << 10
"""Fewer in SLOW_S are too few."""
MOST_SHOWN = 200
KEPT = "!#$%&'()*+,/:;=?@[]~"
"""What a redirect's address may have, beside letters, digits and `_.-`."""
MOST_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
RETRIED = (408, 425, 429, 500, 502, 503, 504)
