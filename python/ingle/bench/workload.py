"""The requests of a load run: lengths and text. Pure functions of a seed.

The same seed gives the same prompts, so use a new one for every run on a server whose prefix cache
is on, unless cache hits are what you want to see.
"""

import csv
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Short common words: most tokenizers spend one token on each, also on the first of a text.
_WORDS = (
    "fire stone river house table winter summer letter market window bridge paper music engine "
    "number circle station forest orange quarter anchor bread chair dream earth flower glass heart "
    "king lake moon north ocean plant road snow tree voice wall gold milk horse bird cloud light "
    "sound water image field train board story"
).split()
_LONGEST_TOKENS = 1024
# Every 5th percentile of Microsoft's public trace of chats (AzurePublicDataset,
# AzureLLMInferenceTrace_conv, 2023), the last one so that the mean is the trace's: 1,155 tokens in,
# 211 out.
_AZURE_IN = (
    4, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020,
    1045, 1071, 1097, 1130, 1189, 1315, 1877, 2735, 4083, 5100,
)  # fmt: skip
_AZURE_OUT = (
    7, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129,
    151, 177, 217, 384, 395, 400, 411, 424, 451, 700,
)  # fmt: skip


class WorkloadError(ValueError):
    """A description of lengths that cannot be used; says which part."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the run."""

    seed: int
    num_prompt_tokens: int
    num_output_tokens: int

    def prompt(self) -> str:
        """About `num_prompt_tokens` tokens of words, the same for the same seed."""
        choose = random.Random(self.seed).choice  # noqa: S311 - load, not secrets
        return " ".join(choose(_WORDS) for _ in range(max(1, self.num_prompt_tokens - 1)))


def requests(lengths: str, count: int, seed: int) -> list[Request]:
    """The run's requests.

    `lengths` is `sharegpt` (log-normal, about 220 tokens in and 200 out, at most 1024),
    `azure-conv` (chats, about 1,155 tokens in and 211 out, at most 5,100 and 700),
    `fixed:IN:OUT`, or `csv:FILE` with the columns ContextTokens and GeneratedTokens.
    Raises WorkloadError for anything else.
    """
    pairs = _pairs(lengths, count, seed)
    return [Request(seed * 1_000_003 + i, *pair) for i, pair in enumerate(pairs)]


def _pairs(lengths: str, count: int, seed: int) -> list[tuple[int, int]]:
    kind, _, rest = lengths.partition(":")
    if lengths == "sharegpt":
        return _sharegpt(count, seed)
    if lengths == "azure-conv":
        return _azure_conv(count, seed)
    if kind == "fixed":
        return [_fixed(rest)] * count
    if kind == "csv" and rest:
        return _from_csv(Path(rest), count, seed)
    raise WorkloadError(f"--lengths {lengths}: not sharegpt, azure-conv, fixed:IN:OUT or csv:FILE")


def _sharegpt(count: int, seed: int) -> list[tuple[int, int]]:
    """Log-normal lengths with the means of ShareGPT v3 as serving benchmarks use it."""
    rng = random.Random(seed)  # noqa: S311 - load, not secrets

    def drawer(mean: float, sigma: float) -> Callable[[], int]:
        mu = math.log(mean) - sigma * sigma / 2
        return lambda: max(4, min(_LONGEST_TOKENS, round(rng.lognormvariate(mu, sigma))))

    prompt, output = drawer(255, 1.1), drawer(215, 0.9)
    return [(prompt(), output()) for _ in range(count)]


def _azure_conv(count: int, seed: int) -> list[tuple[int, int]]:
    """Lengths between the percentiles above; in and out are independent, as nearly in the trace."""
    rng = random.Random(seed)  # noqa: S311 - load, not secrets

    def draw(percentiles: tuple[int, ...]) -> int:
        place = rng.random() * (len(percentiles) - 1)
        below = int(place)
        step = percentiles[below + 1] - percentiles[below]
        return round(percentiles[below] + (place - below) * step)

    return [(draw(_AZURE_IN), draw(_AZURE_OUT)) for _ in range(count)]


def _fixed(rest: str) -> tuple[int, int]:
    parts = rest.split(":")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise WorkloadError(f"--lengths fixed:{rest}: want fixed:IN:OUT, both at least 1")
    return int(parts[0]), int(parts[1])


def _from_csv(path: Path, count: int, seed: int) -> list[tuple[int, int]]:
    try:
        with path.open(newline="") as file:
            rows = [
                (int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in csv.DictReader(file)
            ]
    except (OSError, KeyError, ValueError) as error:
        raise WorkloadError(f"--lengths csv:{path}: {error!r}") from error
    if not rows:
        raise WorkloadError(f"--lengths csv:{path}: no rows")
    random.Random(seed).shuffle(rows)  # noqa: S311 - load, not secrets
    return [(max(4, rows[i % len(rows)][0]), max(1, rows[i % len(rows)][1])) for i in range(count)]
