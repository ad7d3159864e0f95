"""Runs the sampler's kernels on rows of parameters (sampler_definition.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from contract import words_of
from device import Kernels, poison, u32
from sampler_definition import Params, f32


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
    words = np.full((num_slots, len(words_of("Slot"))), 0xABABABAB, np.uint32)
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
