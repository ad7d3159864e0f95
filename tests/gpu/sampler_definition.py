"""The sampler's definition (rust/cpu/src/sampler) in numpy, step by step. Pure, no torch.

tests/golden/sampler_vectors.json ties it to the definition: both answer those cases alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from contract import CONSTANTS, FIELDS, words_of

NONE = 0xFFFFFFFF
f32 = np.float32
MOST_PENALISED = f32(1e30)


@dataclass
class Params:
    """One row: what SamplingParams and the history of its request say.

    A field that Slot in kernels/contract.cuh has too goes by the same name here.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_n_sigma: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    banned: list[int] = field(default_factory=list)
    bias: dict[int, float] = field(default_factory=dict)
    allowed: np.ndarray | None = None  # bool [vocab_size]
    late_mask: bool = False  # allowed comes with the sample, not with the slot
    seed: int = 0
    choice: int = 0
    prompt: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    log_probs: int | None = None

    @property
    def has_penalties(self) -> bool:
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1, 0, 0)

    def words(self) -> list[int]:
        """The row as the kernels read it: a Slot."""
        values = {
            each.name: int(f32(getattr(self, each.name)).view(np.uint32))
            if each.type == "float"
            else getattr(self, each.name)
            for each in fields(self)
            if each.name in FIELDS["Slot"]
        }
        has_mask = self.allowed is not None and not self.late_mask
        values |= {
            "seed_low": self.seed & NONE,
            "seed_high": self.seed >> 32,
            "position": len(self.generated),
            "log_probs": NONE if self.log_probs is None else self.log_probs,
            "flags": has_mask * CONSTANTS["SLOT_HAS_MASK"]
            + self.has_penalties * CONSTANTS["SLOT_HAS_PENALTIES"],
            "bias_len": len(self.bias),
            "banned_len": len(self.banned),
        }
        missing = FIELDS["Slot"].keys() - values.keys()
        assert not missing, f"Params does not have these fields of Slot: {sorted(missing)}"
        return words_of("Slot", **values)


def philox(group, position: int, choice: int, seed: int):
    """Random words [groups, 4] of Philox4x32-10."""
    group = np.asarray(group, np.uint64)
    c = [group, np.full_like(group, position), np.full_like(group, choice), np.zeros_like(group)]
    key, low = [seed & NONE, seed >> 32], np.uint64(NONE)
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        shift = np.uint64(32)
        c = [
            (second >> shift) ^ c[1] ^ np.uint64(key[0]),
            second & low,
            (first >> shift) ^ c[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(key[0] + 0x9E3779B9) & NONE, (key[1] + 0xBB67AE85) & NONE]
    return np.stack(c, -1)


def gumbel(ids, params: Params):
    """f32 noise of each id."""
    ids = np.asarray(ids)
    words = philox(ids // 4, len(params.generated), params.choice, params.seed)
    word = words[np.arange(len(ids)), ids % 4]
    uniform = ((word >> np.uint64(9)).astype(f32) + f32(0.5)) * f32(1 / 8388608)
    return -np.log(-np.log(uniform))


def changed_logits(logits, params: Params, valid: int):
    """Steps 3 to 5."""
    x = logits[:valid].astype(f32).copy()
    for token, bias in params.bias.items():
        if token < valid:
            x[token] += f32(bias)
    if params.allowed is not None:
        x[~params.allowed[:valid]] = -np.inf
    if len(params.generated) < params.min_tokens:
        x[[t for t in params.banned if t < valid]] = -np.inf
    if params.has_penalties:
        with np.errstate(over="ignore"):  # a tiny repetition penalty; what overflows is clipped
            penalise(x, params)
    return x


def penalise(x, params: Params) -> None:
    """Step 5, in place."""
    for token in set(params.prompt) | set(params.generated):
        if token >= len(x) or x[token] == -np.inf:
            continue
        r = f32(params.repetition_penalty)
        x[token] = x[token] / r if x[token] > 0 else x[token] * r
        count = params.generated.count(token)
        if count:
            taken = f32(params.frequency_penalty) * f32(count)
            x[token] = x[token] - taken - f32(params.presence_penalty)
        x[token] = np.clip(x[token], -MOST_PENALISED, MOST_PENALISED)


def scores(logits, params: Params, valid: int):
    """What the last step compares, -inf for ids that are not kept; None if the row has no token."""
    if not np.isfinite(logits).all():
        return None
    x = changed_logits(logits, params, valid)
    if x.max() == -np.inf:
        return None
    if params.temperature == 0:
        return x
    x = (x - x.max()) / f32(params.temperature)
    sigma = f32(x[x > -np.inf].astype(np.float64).std())
    order = np.lexsort((np.arange(valid), -x.astype(np.float64)))
    order = order[x[order] > -np.inf]
    if params.top_k and params.top_k < valid:
        order = order[: params.top_k]
    if params.top_p < 1:
        weight = np.exp(x[order].astype(np.float64))
        running = np.cumsum(weight)
        order = order[: 1 + int(np.searchsorted(running, float(f32(params.top_p)) * running[-1]))]
    if params.min_p > 0:
        order = order[x[order] >= np.log(f32(params.min_p))]
    if params.top_n_sigma > 0:
        order = order[x[order] >= -f32(params.top_n_sigma) * sigma]
    out = np.full(valid, -np.inf, f32)
    out[order] = x[order] + gumbel(order, params)
    return out


def raw_log_prob(logits, token: int) -> float:
    """Step 2, in f64."""
    x = logits.astype(np.float64)
    return float(x[token] - x.max() - np.log(np.exp(x - x.max()).sum()))
