"""A finished span between the worker and the process that sends it. Plain data."""

import msgspec


class Stage(msgspec.Struct, array_like=True):
    """A part of a request's life: a child of its span."""

    name: str
    start_ns: int
    """Since 1970, as all times here."""
    end_ns: int


class SpanRecord(msgspec.Struct, omit_defaults=True):
    """A span as the exporter reads it."""

    name: str
    trace_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int = 0
    attributes: dict[str, str | int | float | bool | list[str]] = {}
    stages: list[Stage] = []
    error: str | None = None
    """What went wrong, as `error.type`."""
