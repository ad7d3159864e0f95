"""From outcomes to figures: one flat JSON document and a few lines for a person."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ingle.bench.client import Outcome


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Report:
    """One run. Rates count whole requests that ended well, over the run's wall time."""

    requests_ok: int
    requests_failed: int
    errors: list[str]
    short_outputs: int
    wall_s: float
    requests_per_s: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_ms: Percentiles | None
    itl_ms: Percentiles | None
    tpot_ms_mean: float | None
    cpu_percent: float | None
    cpu_us_per_token: float | None
    rss_mib: float | None

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def percentile(values: list[float], percent: float) -> float:
    """The value below which `percent` of the sorted values lie."""
    return values[min(len(values) - 1, int(percent / 100 * len(values)))]


def _percentiles_ms(values_s: Iterable[float]) -> Percentiles | None:
    values = sorted(values_s)
    if not values:
        return None
    return Percentiles(*(round(1e3 * percentile(values, p), 2) for p in (50, 90, 99)))


def summarise(
    outcomes: list[Outcome], wall_s: float, cpu_s: float | None, rss_mib: float | None
) -> Report:
    """Figures of one run; `cpu_s` is what the server's processes used meanwhile."""
    ok = [o for o in outcomes if o.error is None]
    prompt_tokens = sum(o.num_prompt_tokens for o in ok)
    output_tokens = sum(o.num_output_tokens for o in ok)
    tokens = prompt_tokens + output_tokens
    per_token = [
        (o.last_s - o.first_s) / (o.num_output_tokens - 1)
        for o in ok
        if o.first_s is not None and o.last_s is not None and o.num_output_tokens > 1
    ]
    return Report(
        requests_ok=len(ok),
        requests_failed=len(outcomes) - len(ok),
        errors=sorted({o.error for o in outcomes if o.error is not None})[:5],
        short_outputs=sum(o.num_output_tokens != o.wanted_tokens for o in ok),
        wall_s=round(wall_s, 3),
        requests_per_s=round(len(ok) / wall_s, 2),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_tokens_per_s=round(output_tokens / wall_s, 1),
        total_tokens_per_s=round(tokens / wall_s, 1),
        ttft_ms=_percentiles_ms(o.first_s - o.started_s for o in ok if o.first_s is not None),
        itl_ms=_percentiles_ms(gap for o in ok for gap in o.gaps_s),
        tpot_ms_mean=round(1e3 * sum(per_token) / len(per_token), 3) if per_token else None,
        cpu_percent=round(100 * cpu_s / wall_s, 1) if cpu_s is not None else None,
        cpu_us_per_token=round(1e6 * cpu_s / tokens, 2) if cpu_s is not None and tokens else None,
        rss_mib=round(rss_mib) if rss_mib is not None else None,
    )


def _line(name: str, figures: Percentiles | None) -> str:
    if figures is None:
        return f"  {name:<6} -"
    columns = (("p50", figures.p50), ("p90", figures.p90), ("p99", figures.p99))
    return f"  {name:<6} " + "   ".join(f"{p} {value:>9.2f}" for p, value in columns) + " ms"


def as_text(report: Report) -> str:
    """A few lines for a person."""
    lines = [
        f"{report.requests_ok} requests in {report.wall_s:.1f} s: {report.requests_per_s} req/s, "
        f"{report.output_tokens_per_s:.0f} tok/s out, {report.total_tokens_per_s:.0f} in + out",
        _line("TTFT", report.ttft_ms),
        _line("ITL", report.itl_ms),
    ]
    if report.cpu_percent is not None:
        lines.append(
            f"  server {report.cpu_percent} % of a core, {report.cpu_us_per_token} us CPU per "
            f"token (in + out), {report.rss_mib:.0f} MiB"
        )
    if report.short_outputs:
        lines.append(f"  {report.short_outputs} answers had another length than asked for")
    if report.requests_failed:
        lines.append(f"  {report.requests_failed} FAILED: {'; '.join(report.errors)}")
    return "\n".join(lines)
