"""The sampler's definition (rust/cpu/src/sampler) in numpy, and a harness that runs the kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from device import Kernels, poison, u32

NONE = 0xFFFFFFFF
f32 = np.float32


@dataclass
class Params:
    """One row: what SamplingParams and the history of its request say."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
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
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0

    def words(self) -> list[int]:
        reals = [
            self.temperature,
            self.top_p,
            self.min_p,
            self.repetition,
            self.presence,
            self.frequency,
        ]
        t, p, m, r, e, q = np.array(reals, f32).view(np.uint32).tolist()
        flags = (
            1 if self.allowed is not None and not self.late_mask else 0
        ) | 2 * self.has_penalties
        wanted = NONE if self.log_probs is None else self.log_probs
        return [
            *(t, self.top_k, p, m, r, e, q, self.min_tokens, self.seed & NONE, self.seed >> 32),
            *(self.choice, len(self.generated), wanted, flags, len(self.bias), len(self.banned)),
        ]


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
        for token in set(params.prompt) | set(params.generated):
            if token < valid:
                r = f32(params.repetition)
                x[token] = x[token] / r if x[token] > 0 else x[token] * r
                count = params.generated.count(token)
                if count:
                    x[token] = x[token] - f32(params.frequency) * f32(count) - f32(params.presence)
    return x


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
    out = np.full(valid, -np.inf, f32)
    out[order] = x[order] + gumbel(order, params)
    return out


@dataclass
class Prepared:
    """Everything the sampler's kernels take."""

    sampler: Kernels
    log_probs: Kernels
    logits: torch.Tensor
    meta: torch.Tensor
    slots: torch.Tensor
    counts: torch.Tensor
    lists: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    chunks: int
    S_pad: int
    partials: torch.Tensor
    work: torch.Tensor
    last: torch.Tensor
    out: torch.Tensor

    def launch(self) -> None:
        """sample_scan, sample_finish, log_probs_samples."""
        logits, work, meta, slots, counts = (
            self.logits,
            self.work,
            self.meta,
            self.slots,
            self.counts,
        )
        self.sampler.launch(
            "sample_scan_f32_sm80",
            (self.chunks, self.S_pad),
            256,
            logits,
            work,
            meta,
            slots,
            counts,
            *self.lists,
            self.partials,
        )
        self.sampler.launch(
            "sample_finish_f32_sm80",
            self.S_pad,
            512,
            logits,
            work,
            meta,
            slots,
            counts,
            self.partials,
            self.last,
            self.out,
        )
        self.log_probs.launch(
            "log_probs_samples_f32_sm80", self.S_pad, 512, logits, meta, slots, self.out
        )


@dataclass
class Result:
    """Device buffers after a step."""

    out: np.ndarray  # [S_pad, 48] u32
    last_token: np.ndarray
    slots: np.ndarray
    counts: torch.Tensor


def prepare_sampler(
    logits: torch.Tensor, rows: list[Params], valid: int, pad: int = 2, exact: bool = True
) -> Prepared:
    """Uploads the state of `rows`; row i has slot 2 * i + 1."""
    S, V = len(rows), logits.shape[1]
    num_slots = 2 * S + 2
    words = np.full((num_slots, 16), 0xABABABAB, np.uint32)
    mask = np.zeros((num_slots, (V + 31) // 32), np.uint32)
    bias, banned = np.zeros((num_slots, 1024, 2), np.uint32), np.zeros((num_slots, 128), np.uint32)
    samples, jobs, ids = [], [], []
    for i, params in enumerate(rows):
        slot = 2 * i + 1
        words[slot] = params.words()
        if params.allowed is not None:
            bits = np.zeros(mask.shape[1] * 32, bool)
            bits[:V] = params.allowed
            mask[slot] = np.packbits(bits, bitorder="little").view(np.uint32)
        for j, (token, value) in enumerate(params.bias.items()):
            bias[slot, j] = token, np.array(value, f32).view(np.uint32)
        banned[slot, : len(params.banned)] = params.banned
        samples += [i, i, slot, 2 if params.late_mask else 0]
        if params.has_penalties:
            jobs += [slot, len(ids), len(params.prompt), len(params.generated)]
            ids += params.prompt + params.generated
    meta = u32([1, S, S, 0, 16, 16, 16, 16, *[0] * 8, *samples])
    slots, mask, bias, banned = u32(words), u32(mask), u32(bias), u32(banned)
    dims = {"vocab_size": V, "sample_vocab": valid, "num_slots": num_slots}
    counts = torch.full((num_slots, V), -1, dtype=torch.int16, device="cuda")
    if jobs:
        opened = Kernels("slot_state", dims, exact)
        opened.launch(
            "sample_open_u32_sm80", len(jobs) // 4, 1024, counts, u32(ids or [0]), u32(jobs)
        )
    return Prepared(
        Kernels("sampler", dims, exact),
        Kernels("log_probs", dims, exact),
        logits,
        meta,
        slots,
        counts,
        (mask, bias, banned),
        (V + 4095) // 4096,
        S + pad,
        poison(S + pad, (V + 4095) // 4096, 8, dtype=torch.int32),
        poison(S + pad, V, dtype=torch.float32),
        poison(num_slots, dtype=torch.int32),
        poison(S + pad, 48, dtype=torch.int32),
    )


def run_sampler(logits, rows, valid: int, pad: int = 2, exact: bool = True) -> Result:
    """Runs sample_open, sample_scan, sample_finish and log_probs_samples once."""
    prepared = prepare_sampler(logits, rows, valid, pad, exact)
    prepared.launch()
    buffers = (prepared.out, prepared.last, prepared.slots)
    return Result(*(t.cpu().numpy().view(np.uint32) for t in buffers), prepared.counts)
