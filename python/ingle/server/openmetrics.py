"""/metrics for scrapers that ask for OpenMetrics: the same families, and exemplars. No I/O.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md: a counter's family
has no `_total`, its samples do, and the text has an end.
"""

import re
from typing import Final

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def is_wanted(accept: str) -> bool:
    """Whether an Accept header prefers OpenMetrics to plain text, or has only that."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for offer in accept.split(","):
        kind, *parameters = (part.strip() for part in offer.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], weight_of(parameters))
    return weights["application/openmetrics-text"] > 0 and (
        weights["application/openmetrics-text"] >= weights["text/plain"]
    )


def weight_of(parameters: list[str]) -> float:
    """The `q` of an offer; 1 without one, 0 for one that is no number."""
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def of(lines: bytes) -> bytes:
    """Prometheus text with the metadata of OpenMetrics."""
    counters = set(COUNTER.findall(lines))

    def renamed(found: re.Match[bytes]) -> bytes:
        return found[1] + found[2] if found[2] in counters else found[0]

    return METADATA.sub(renamed, lines) + b"# EOF\n"


COUNTER: Final = re.compile(rb"^# TYPE (\S+)_total counter$", re.MULTILINE)
METADATA: Final = re.compile(rb"^(# (?:HELP|TYPE) )(\S+)_total(?= )", re.MULTILINE)
