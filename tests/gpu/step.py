"""Builds step metadata and paged KV for the kernel tests, and the Python twin of step_prepare."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from contract import CONSTANTS, words_of
from device import U64, Kernels, TensorMap, poison, tensor_map, u32

NONE = CONSTANTS["NONE"]
LAYERS = 3


@dataclass
class Row:
    """One request's part of a step."""

    slot: int
    start: int
    num_tokens: int
    tokens: list[int] | None = None  # None: the slot's last token
    is_prompt: bool = False  # for attention_prefill


@dataclass
class Step:
    """Rows and what else travels in the metadata."""

    rows: list[Row]
    updates: list[tuple[int, int, int]] = field(default_factory=list)
    samples: list[tuple[int, int, int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    def meta(self) -> torch.Tensor:
        rows, tokens, first = [], [], 0
        for row in self.rows:
            rows += words_of(
                "StepRow",
                slot=row.slot,
                start=row.start,
                num_tokens=row.num_tokens,
                first_token=first,
                flags=CONSTANTS["PROMPT_ROW"] if row.is_prompt else 0,
                sample_index=NONE,
            )
            tokens += row.tokens if row.tokens is not None else [NONE] * row.num_tokens
            first += row.num_tokens
        updates = [word for update in self.updates for word in update]
        samples = [word for sample in self.samples for word in sample]
        head = words_of("StepHeader")
        at = [len(head)]
        for part in (rows, tokens, updates):
            at.append(at[-1] + len(part))
        head = words_of(
            "StepHeader",
            num_rows=len(self.rows),
            num_tokens=first,
            num_samples=len(self.samples),
            num_updates=len(self.updates),
            rows_at=at[0],
            tokens_at=at[1],
            updates_at=at[2],
            samples_at=at[3],
        )
        return u32(head + rows + tokens + updates + samples)


@dataclass
class Prepared:
    """What step_prepare wrote."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_of_token: torch.Tensor
    kv_slot: torch.Tensor
    sample_rows: torch.Tensor
    plans: list[torch.Tensor]
    prompt_plans: list[torch.Tensor]
    prompt_counters: torch.Tensor


def prepare(
    step: Step,
    dims: dict[str, int],
    block_table: torch.Tensor,
    last_token: torch.Tensor,
    T_pad: int,
    grid: int,
    windows: tuple[int, ...] = (0,),
    kv_tile: int = 64,
    no_split: bool = False,
    S_pad: int = 8,
    exact: bool = True,
    causal: bool = True,
    split: bool = False,
    prompt_tile: int = 128,
    kinds: list[dict[str, int]] | None = None,
) -> Prepared:
    """Runs step_prepare_tokens; `split` gives the rows that are prompts plans of their own.

    `kinds`: fields of PlanKind for each plan, in place of `windows`.
    block_table is [num_slots, max_blocks], or has a dimension for KV groups before; then so has
    kv_slot.
    """
    num_groups = block_table.shape[0] if block_table.dim() == 3 else 1
    num_plans = len(kinds or windows)
    kv_heads = [kind["num_kv_heads"] for kind in kinds or [dims]]
    group = dims["num_heads"] // min(kv_heads)
    q_rows, grid_step = CONSTANTS["QUERY_ROWS"], CONSTANTS["PLAN_GRID_STEP"]
    capacity = -(-T_pad * group // q_rows) + len(step.rows)
    most_blocks = max([kind["grid"] for kind in kinds] if kinds else [grid])
    words = len(words_of("PlanHeader")) + -(-most_blocks // grid_step) * grid_step
    words += len(words_of("PlanEntry")) * capacity
    flags = CONSTANTS["PLAN_WHOLE"] if no_split else 0
    flags |= 0 if causal else CONSTANTS["PLAN_NOT_CAUSAL"]
    out = [poison(T_pad, dtype=torch.int32) for _ in range(3)]
    kv_slots = (num_groups, T_pad) if block_table.dim() == 3 else (T_pad,)
    out.append(poison(*kv_slots, dtype=torch.int32))
    samples, plans = (
        poison(S_pad, dtype=torch.int32),
        poison(num_plans, words, dtype=torch.int32),
    )
    prompt_rows = CONSTANTS["PROMPT_ROWS"]
    prompt_entries = -(-T_pad * group // prompt_rows) + len(step.rows)
    prompt_words = len(words_of("PromptHeader")) + len(words_of("PromptEntry")) * prompt_entries
    prompt_plans = poison(num_plans, prompt_words, dtype=torch.int32)
    prompt_counters = poison(LAYERS, dtype=torch.int32)
    defines = {"PLAN_KINDS": 1} if kinds else {}
    rules = [word for kind in kinds or () for word in words_of("PlanKind", **kind)] or windows
    Kernels("step_prepare", dims, exact, **defines).launch(
        "step_prepare_tokens_u32_sm80",
        1 + num_plans * (2 if split else 1),
        1024,
        step.meta(),
        last_token,
        block_table,
        *out,
        samples,
        u32(rules),
        plans,
        words,
        capacity,
        T_pad,
        S_pad,
        grid,
        q_rows,
        kv_tile,
        flags,
        num_plans,
        prompt_plans,
        prompt_words,
        prompt_counters,
        LAYERS,
        prompt_rows,
        prompt_tile,
        int(split),
        num_groups,
    )
    return Prepared(*out, samples, list(plans), list(prompt_plans), prompt_counters)


@dataclass
class PagedKv:
    """A pool [block][layer][K, V][kv_head][token][head_dim], NaN where nothing is stored."""

    pool: torch.Tensor
    layer: int

    @property
    def arguments(self) -> tuple[U64, U64, U64]:
        """kv_base, block_stride, layer_offset."""
        stride = self.pool[0].numel() * 2
        layer = self.pool[0, 0].numel() * 2 * self.layer
        return U64(self.pool.data_ptr()), U64(stride), U64(layer)

    def map(self, tile: int) -> TensorMap:
        """The layer's view for attention_prefill, tiles of `tile` tokens."""
        blocks, _, _, heads, block_size, width = self.pool.shape
        head = block_size * width * 2
        base, stride, layer = (argument.value for argument in self.arguments)
        return tensor_map(
            base + layer,
            (width, block_size, heads, 2, blocks),
            (width * 2, head, heads * head, stride),
            (64, min(block_size, tile), 1, 1, 1),
            self.pool.dtype == torch.float16,
        )


def random_tables(lengths: dict[int, int], num_slots: int, max_blocks: int, block_size: int):
    """Random distinct blocks for each slot's length; returns (table, number of blocks)."""
    counts = {slot: (length + block_size - 1) // block_size for slot, length in lengths.items()}
    total = sum(counts.values()) + 3
    free = torch.randperm(total).tolist()
    table = torch.full((num_slots, max_blocks), total - 1, dtype=torch.int32)
    for slot, count in counts.items():
        table[slot, :count] = torch.tensor([free.pop() for _ in range(count)], dtype=torch.int32)
    return table.cuda(), total


def random_kv(table, total, lengths, heads, block_size, head_dim, dtype, layers=2):
    """A pool that holds random K and V; also returns {slot: (K, V)} [length, heads, dim]."""
    layer = layers - 1
    pool = poison(total, layers, 2, heads, block_size, head_dim, dtype=dtype)
    dense = {}
    for slot, length in lengths.items():
        # One seed a length: a request's numbers do not depend on the others in its batch.
        generator = torch.Generator("cuda").manual_seed(length)
        kv = torch.randn(2, length, heads, head_dim, device="cuda", generator=generator).to(dtype)
        dense[slot] = kv
        for b in range((length + block_size - 1) // block_size):
            part = kv[:, b * block_size : (b + 1) * block_size]
            pool[int(table[slot, b]), layer, :, :, : part.shape[1]] = part.transpose(1, 2)
    return PagedKv(pool, layer), dense
