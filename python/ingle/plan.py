"""`ingle plan`: how many workers a load takes, by simulating a fleet in virtual time. Runs once.

The core simulates (rust/engine/src/plan); this file reads the trace, scales it and prints.
"""

import csv
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from ingle import _core
from ingle.errors import ConfigError

Arrival = tuple[float, int, int]
"""Seconds from the start of the trace, prompt tokens, answer tokens."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """A trace and how it is scaled."""

    trace: Path
    rate: float | None = None
    """Requests a second; None leaves the times as they are."""
    copies: int = 1
    limit: int | None = None
    seed: int = 1


def arrivals_of(load: Load) -> list[Arrival]:
    """The requests in order. Errors: ConfigError names the file and the line that is wrong."""
    found = list(islice(read_trace(load.trace), load.limit))
    if not found:
        raise ConfigError(f"trace: {load.trace}: no requests")
    last = found[-1][0]
    if load.copies > 1:
        # Each copy begins elsewhere in the trace, so that bursts do not fall together.
        chance = random.Random(load.seed)  # noqa: S311 # No secret.
        shifts = [0.0, *(chance.uniform(0, last) for _ in range(load.copies - 1))]
        found = sorted(
            ((at + shift) % last if last else at, prompt, answer)
            for shift in shifts
            for at, prompt, answer in found
        )
    if load.rate is not None and last > 0:
        factor = len(found) / last / load.rate
        found = [(at * factor, prompt, answer) for at, prompt, answer in found]
    return found


def read_trace(path: Path) -> Iterator[Arrival]:
    """A CSV file with a header line and three columns: time, prompt tokens, answer tokens.

    A time is a number of seconds or an ISO date, as in the Azure Public Dataset.
    """
    try:
        with path.open(newline="") as file:
            rows = csv.reader(file)
            next(rows, None)
            start: float | None = None
            for row in rows:
                try:
                    at, (prompt, answer) = seconds(row[0]), map(int, row[1:3])
                except (ValueError, IndexError):
                    place = f"trace: {path}: line {rows.line_num}"
                    raise ConfigError(
                        f"{place}: must be time, prompt tokens, answer tokens"
                    ) from None
                start = at if start is None else start
                yield at - start, prompt, answer
    except OSError as error:
        raise ConfigError(f"trace: cannot read {path}: {error.strerror}") from error


def seconds(text: str) -> float:
    """A time of the trace. Errors: ValueError."""
    try:
        return float(text)
    except ValueError:
        # Python reads six digits of a second's fraction; the dataset has seven.
        whole, _, fraction = text.partition(".")
        return datetime.fromisoformat(whole).timestamp() + float(f"0.{fraction or 0}")


def simulate(arrivals: Iterable[Arrival], **options: Any) -> dict[str, Any]:
    """The core's report on a fleet. Errors: ModelError for what cannot be planned. Blocking."""
    document = {"arrivals": list(arrivals), **options}
    report: dict[str, Any] = json.loads(_core.plan(json.dumps(document).encode()))
    return report


def plan_lines(found: Mapping[str, Any], rate: float) -> list[str]:
    """For people."""
    report = found["report"]
    ttft, tpot = report["ttft_ms"], report["tpot_ms"]

    def shown(values: Mapping[str, float]) -> str:
        return ", ".join(f"{name} {values[name]:.1f}" for name in ("p50", "p90", "p99"))

    groups = f" in {found['groups']} groups" if found["groups"] > 1 else ""
    return [
        f"workers      {found['workers']}{groups} ({found['profile']})",
        f"load         {report['requests']} requests, {rate:.1f} a second",
        f"throughput   {report['requests_per_second']:.1f} requests and "
        f"{report['output_tokens_per_second']:.0f} output tokens a second",
        f"TTFT ms      {shown(ttft)}",
        f"TPOT ms      {shown(tpot)}",
        f"attained     {100 * report['attained']:.2f} % of requests",
        f"busy         {100 * report['busy']:.0f} % of the workers' time",
    ]
