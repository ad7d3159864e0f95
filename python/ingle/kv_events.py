"""The value of `--kv-events-config`, and the sockets that KV events go out on. Runs once.

Names and defaults are vLLM's (vllm/config/kv_events.py). Unlike vLLM, the worker always binds:
subscribers connect to it. The events carry the token ids of prompts, so they are off by default
and an address that every network reaches must be asked for.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ingle.errors import ConfigError
from ingle.faults import fault_of


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to publish, and where."""

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] = "zmq"
    endpoint: str | None = None
    """`tcp://HOST:PORT`; engine N of several has PORT + N."""
    replay_endpoint: str | None = None
    buffer_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 10_000
    """Batches kept for replay."""
    hwm: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    """Messages that may wait for one subscriber."""
    topic: Annotated[str, Meta(max_length=255)] = ""
    allow_wildcard: bool = False
    """Permits an endpoint on all addresses of the machine, such as `tcp://*:5557`."""
    encoding: Literal["array", "map"] = "map"
    """How events are written: see docs/OPERATIONS.md."""

    @property
    def is_on(self) -> bool:
        """Whether anything is published."""
        return self.enable_kv_cache_events and self.publisher == "zmq"

    def endpoints(self) -> list[str]:
        """The endpoints of one engine: where it publishes, then where it replays, if it does."""
        both = (self.endpoint, self.replay_endpoint)
        return [endpoint for endpoint in both if endpoint is not None]

    def options(self) -> dict[str, Any]:
        """The core's option `kv_events`."""
        return {
            "topic": self.topic,
            "buffer_steps": self.buffer_steps,
            "hwm": self.hwm,
            "replays": self.replay_endpoint is not None,
            "encoding": self.encoding,
        }


def parse_kv_events(text: str) -> KvEventsConfig:
    """The settings in a JSON object. Errors: ConfigError names the key that is wrong."""
    try:
        value = msgspec.json.decode(text.encode())
    except msgspec.DecodeError as error:
        raise ConfigError(f"{NAME}: is not JSON: {error}") from None
    try:
        found = msgspec.convert(value, KvEventsConfig)
    except msgspec.ValidationError as error:
        fault = fault_of(error, KvEventsConfig, value, "")
        text = fault.message() if fault.place else fault.reason
        raise ConfigError(f"{NAME}: {text}") from None
    if found.is_on:
        if found.endpoint is None:
            raise ConfigError(f"{NAME}: endpoint: must be tcp://HOST:PORT")
        for endpoint in found.endpoints():
            split_endpoint(endpoint)
    return found


def bind_kv_events(config: KvEventsConfig, num_engines: int) -> list[socket.socket]:
    """The bound sockets of all engines, those of one engine after the other; they do not listen.

    Errors: ConfigError for a wildcard that was not asked for, OSError if an address is taken.
    """
    sockets: list[socket.socket] = []
    try:
        for number in range(num_engines):
            for endpoint in config.endpoints():
                sockets.append(bind(endpoint, number, config))  # noqa: PERF401 # Closed on errors.
    except BaseException:
        close_all(sockets)
        raise
    return sockets


def bind(endpoint: str, number: int, config: KvEventsConfig) -> socket.socket:
    """The socket of one endpoint for engine `number`."""
    host, port = split_endpoint(endpoint)
    # Port 0 is any free one, for each engine.
    port += number if port else 0
    if port > MOST_PORT:
        raise ConfigError(f"{NAME}: {endpoint}: engine {number} would have port {port}")
    try:
        found = socket.getaddrinfo(
            None if host == "*" else host,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{NAME}: cannot resolve {host!r}: {error}") from error
    family, kind, protocol, _, where = found[0]
    if ipaddress.ip_address(str(where[0]).partition("%")[0]).is_unspecified:
        refuse_wildcard(endpoint, config)
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except OSError as error:
        bound.close()
        raise OSError(f"{NAME}: cannot bind {host} port {port}: {error.strerror}") from error
    return bound


def refuse_wildcard(endpoint: str, config: KvEventsConfig) -> None:
    """Errors: ConfigError unless the settings allow all addresses."""
    if not config.allow_wildcard:
        raise ConfigError(
            f"{NAME}: {endpoint} is on all addresses of this machine, and the events carry the "
            'token ids of prompts; name one address, or add "allow_wildcard": true'
        )


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port. Errors: ConfigError for anything but `tcp://HOST:PORT`."""
    found = ENDPOINT.fullmatch(endpoint)
    if found is None or int(found[2]) > MOST_PORT:
        raise ConfigError(f"{NAME}: endpoint: must be tcp://HOST:PORT, not {endpoint!r}")
    return found[1].removeprefix("[").removesuffix("]"), int(found[2])


def addresses(sockets: Sequence[socket.socket]) -> list[str]:
    """Where subscribers connect, as ZeroMQ writes it."""
    found = []
    for each in sockets:
        host, port = each.getsockname()[:2]
        found.append(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
    return found


def close_all(sockets: Sequence[socket.socket]) -> None:
    """Closes them."""
    for each in sockets:
        each.close()


NAME = "kv_events_config"
MOST_PORT = 65535
ENDPOINT = re.compile(r"tcp://(\*|\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]*]+):([0-9]{1,5})")
