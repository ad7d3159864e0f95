"""A picture of a run as SVG, written by hand: no plotting library in a server's dependencies."""

from html import escape

from ingle.bench.client import Outcome
from ingle.bench.report import percentile

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 420, 260, 56, 40
_INK, _LINE = "#222", "#c2410c"


def _axis_top(value: float) -> float:
    """The next round number at or above `value`."""
    scale = 1.0
    while scale * 10 <= value:
        scale *= 10
    while scale > value > 0:
        scale /= 10
    return (
        next(scale * step for step in (1, 2, 5, 10) if scale * step >= value) if value > 0 else 1.0
    )


def _chart(title: str, x_label: str, points: list[tuple[float, float]], left: int) -> str:
    x_top = _axis_top(max((x for x, _ in points), default=1.0))
    y_top = _axis_top(max((y for _, y in points), default=1.0))
    width, height = _WIDTH - _LEFT - 12, _HEIGHT - _BOTTOM - 28

    def place(x: float, y: float) -> str:
        return f"{left + _LEFT + x / x_top * width:.1f},{28 + height - y / y_top * height:.1f}"

    marks = []
    for part in (0.0, 0.5, 1.0):
        x, y = left + _LEFT + part * width, 28 + height - part * height
        marks.append(
            f'<text x="{x:.0f}" y="{28 + height + 16}" text-anchor="middle">{part * x_top:g}'
            f'</text><text x="{left + _LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">'
            f"{part * y_top:g}</text>"
        )
    corner, top, right = place(0, 0), place(0, y_top), place(x_top, 0)
    line = " ".join(place(x, y) for x, y in points)
    return (
        f'<text x="{left + _LEFT}" y="16" font-weight="bold">{escape(title)}</text>'
        f'<polyline points="{top} {corner} {right}" fill="none" stroke="{_INK}"/>'
        f'<polyline points="{line}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>'
        f'<text x="{left + _LEFT + width / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">'
        f"{escape(x_label)}</text>{''.join(marks)}"
    )


def _distribution(values_s: list[float]) -> list[tuple[float, float]]:
    """Points (milliseconds, percent of values below)."""
    ordered = sorted(values_s)
    if not ordered:
        return []
    steps = [p / 2 for p in range(200)]
    return [(1e3 * percentile(ordered, p), p) for p in steps] + [(1e3 * ordered[-1], 100.0)]


def _rate(outcomes: list[Outcome]) -> list[tuple[float, float]]:
    """Points (second of the run, requests that ended in it)."""
    ends = [int(o.last_s) for o in outcomes if o.last_s is not None]
    return [(float(s), float(ends.count(s))) for s in range(max(ends, default=0) + 1)]


def svg(outcomes: list[Outcome], title: str) -> str:
    """Three charts: time to first token, time between tokens, requests ended per second."""
    ok = [o for o in outcomes if o.error is None]
    charts = [
        ("Time to first token, % of requests", "ms", _distribution(_ttfts(ok))),
        ("Time between tokens, % of gaps", "ms", _distribution([g for o in ok for g in o.gaps_s])),
        ("Requests ended per second", "s", _rate(ok)),
    ]
    body = "".join(_chart(t, x, p, i * _WIDTH) for i, (t, x, p) in enumerate(charts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{3 * _WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="11" fill="{_INK}"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def _ttfts(outcomes: list[Outcome]) -> list[float]:
    return [o.first_s - o.started_s for o in outcomes if o.first_s is not None]
