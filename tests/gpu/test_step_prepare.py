"""step_prepare against the same rules in Python."""

import pytest
import torch
from contract import CONSTANTS
from device import u32
from step import NONE, Row, Step, prepare

DIMS = {
    "vocab_size": 1000,
    "num_heads": 8,
    "num_kv_heads": 2,
    "block_size": 16,
    "max_blocks": 80,
    "num_slots": 1100,
}
NUM_SLOTS = DIMS["num_slots"]


def random_step(rng, num_rows):
    slots = rng.permutation(NUM_SLOTS)[:num_rows].tolist()
    rows, samples, first = [], [], 0
    for i, slot in enumerate(slots):
        decode = rng.random() < 0.6
        num = 1 if decode else int(rng.integers(1, 70))
        tokens = None if decode and rng.random() < 0.8 else rng.integers(0, 1000, num).tolist()
        is_prompt = num > 1 and bool(rng.random() < 0.5)
        rows.append(Row(int(slot), int(rng.integers(0, 1100)), num, tokens, is_prompt))
        first += num
        if rng.random() < 0.7:
            samples.append((i, first - 1, int(slot), 0))
    updates = [(int(s), int(rng.integers(0, 80)), int(rng.integers(0, 5000))) for s in slots[::2]]
    return Step(rows, updates, samples)


def first_seen(position, window, chunks):
    if chunks and window:
        return position - position % window
    return max(0, position - window + 1) if window else 0


def expected_prompt_entries(step, window, q_rows=128, tile=128, group=4, chunks=False):
    entries, first = [], 0
    for row in step.rows:
        packed = row.num_tokens * group
        for begin in reversed(range(0, packed, q_rows)) if row.is_prompt else ():
            end = min(begin + q_rows, packed)
            low = first_seen(row.start + begin // group, window, chunks)
            tiles = [low // tile, (row.start + (end - 1) // group) // tile + 1]
            kv_end = row.start + row.num_tokens
            entries.append([first, row.slot, row.start, begin, end, *tiles, kv_end])
        first += row.num_tokens
    return entries


def expected_entries(
    step, window, no_split, split=False, causal=True, q_rows=64, tile=64, heads=2, chunks=False
):
    group = DIMS["num_heads"] // heads
    entries, before, first = [], 0, 0
    for row in step.rows:
        packed = row.num_tokens * group
        size = 16 if packed <= 16 else q_rows
        for begin in range(0, packed, size) if not (split and row.is_prompt) else ():
            end = min(begin + size, packed)
            low = first_seen(row.start + begin // group, window, chunks)
            last = row.start + (end - 1) // group
            start = row.start
            if not causal:
                start = last = row.start + row.num_tokens - 1
            entry = [first, row.slot, start, begin, end, low // tile, last // tile + 1, before]
            entries.append(entry)
            tiles, decode = entry[6] - entry[5], end - begin <= 16 and not no_split
            before += heads * (2 * tiles if decode else 4 * tiles + 4)
        first += row.num_tokens
    return entries, before


@pytest.mark.parametrize(("no_split", "split"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("seed", "num_rows"), [(0, 1), (1, 7), (2, 64), (3, 299), (4, 299), (5, 1023), (6, 1024)]
)
def test_metadata_is_unpacked_for_every_kernel(seed, num_rows, exact, no_split, split):
    import numpy as np

    rng = np.random.default_rng(seed)
    step = random_step(rng, num_rows)
    table = torch.from_numpy(rng.integers(0, 5000, (NUM_SLOTS, 80)).astype("int32")).cuda()
    last = torch.from_numpy(rng.integers(0, 1000, NUM_SLOTS).astype("int32")).cuda()
    expected = table.clone().cpu()
    for slot, index, block in step.updates:
        expected[slot, index] = block
    T, S = step.num_tokens, len(step.samples)
    windows = (0, 100)
    out = prepare(
        step,
        DIMS,
        table,
        last,
        T + 13,
        37,
        windows,
        no_split=no_split,
        S_pad=S + 3,
        exact=exact,
        split=split,
    )
    assert torch.equal(table.cpu(), expected)
    ids, positions, slots, kv = [], [], [], []
    for row in step.rows:
        for i in range(row.num_tokens):
            p = row.start + i
            ids.append(int(last[row.slot]) if row.tokens is None else row.tokens[i])
            positions.append(p)
            slots.append(row.slot)
            kv.append(int(expected[row.slot, p // 16]) * 16 + p % 16)
    assert torch.equal(out.token_ids, u32(ids + [0] * 13))
    assert torch.equal(out.positions, u32(positions + [0] * 13))
    assert torch.equal(out.slot_of_token, u32(slots + [NONE] * 13))
    assert torch.equal(out.kv_slot, u32(kv + [NONE] * 13))
    assert out.sample_rows.tolist() == [s[1] for s in step.samples] + [0] * 3
    for plan, window in zip(out.plans, windows, strict=True):
        words = plan.tolist()
        entries, total = expected_entries(step, window, no_split, split)
        assert words[:3] == [len(entries), total, max(4, -(-total // 37))]
        assert words[4:7] == [T, T + 13, 37]
        assert [words[56 + 8 * i : 64 + 8 * i] for i in range(len(entries))] == entries
        assert words[3] & ~2 == int(no_split) + (8 if split else 0)
        for cta in range(37 if entries else 0):
            place = min(cta * words[2], total - 1)
            entry = words[16 + cta]
            assert entries[entry][7] <= place
            if cta * words[2] < total:
                assert entry + 1 == len(entries) or place < entries[entry + 1][7]
    if not split:
        return
    assert not out.prompt_counters.any()
    for plan, window in zip(out.prompt_plans, windows, strict=True):
        words, entries = plan.tolist(), expected_prompt_entries(step, window)
        assert words[0] == len(entries)
        assert [words[16 + 8 * i : 24 + 8 * i] for i in range(len(entries))] == entries


@pytest.mark.parametrize("no_split", [False, True])
def test_entries_reach_to_the_end_of_whole_prompts(no_split):
    rows = [Row(i, 0, n, [0] * n) for i, n in enumerate((1, 3, 16, 63, 64, 65, 200))]
    step = Step(rows)
    table = torch.zeros(NUM_SLOTS, 80, dtype=torch.int32, device="cuda")
    last = torch.zeros(NUM_SLOTS, dtype=torch.int32, device="cuda")
    pad = step.num_tokens + 13
    out = prepare(step, DIMS, table, last, pad, 37, no_split=no_split, causal=False)
    entries, total = expected_entries(step, 0, no_split, causal=False)
    words = out.plans[0].tolist()
    assert words[:2] == [len(entries), total]
    assert [words[56 + 8 * i : 64 + 8 * i] for i in range(len(entries))] == entries


@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("exact", [True, False])
def test_plans_of_layers_that_differ(exact, split, chunks):
    """Windows, heads, tiles and grids of their own; of one kind prompts have no plan of theirs."""
    import numpy as np

    step = random_step(np.random.default_rng(4), 299)
    table = torch.zeros(NUM_SLOTS, 80, dtype=torch.int32, device="cuda")
    last = torch.zeros(NUM_SLOTS, dtype=torch.int32, device="cuda")
    flags = CONSTANTS["KIND_CHUNKS"] if chunks else 0
    prompts = flags | CONSTANTS["KIND_PROMPTS"]
    # window, flags, KV heads, tile, grid, tile of prompts
    numbers = [
        (0, flags, 1, 32, 37, 0),
        (100, prompts, 4, 64, 74, 128),
        (96, prompts, 2, 32, 9, 64),
    ]
    names = ("window", "flags", "num_kv_heads", "kv_tile", "grid", "prompt_tile")
    kinds = [dict(zip(names, each, strict=True)) for each in numbers]
    T = step.num_tokens
    out = prepare(step, DIMS, table, last, T + 13, 1, exact=exact, split=split, kinds=kinds)
    for number, kind in enumerate(kinds):
        has_prompts = bool(kind["flags"] & CONSTANTS["KIND_PROMPTS"])
        window, tile, heads = kind["window"], kind["kv_tile"], kind["num_kv_heads"]
        setting = {"tile": tile, "heads": heads, "chunks": chunks}
        left_out = split and has_prompts
        entries, total = expected_entries(step, window, False, left_out, **setting)
        words, grid = out.plans[number].tolist(), kind["grid"]
        start = 16 + -(-grid // 8) * 8
        assert words[:3] == [len(entries), total, max(4, -(-total // grid))]
        assert words[4:7] == [T, T + 13, grid]
        assert [words[start + 8 * i : start + 8 + 8 * i] for i in range(len(entries))] == entries
        assert words[3] & ~2 == (8 if left_out else 0)
        if left_out:
            words, group = out.prompt_plans[number].tolist(), DIMS["num_heads"] // heads
            setting = {"tile": kind["prompt_tile"], "group": group, "chunks": chunks}
            entries = expected_prompt_entries(step, window, **setting)
            assert words[0] == len(entries)
            assert [words[16 + 8 * i : 24 + 8 * i] for i in range(len(entries))] == entries


def test_step_prepare_of_kv_groups():
    """Each group has a table of its own: updates name its slots, and tokens get a place in each."""
    import numpy as np

    rng = np.random.default_rng(9)
    step = random_step(rng, 64)
    groups = 3
    step = Step(
        step.rows,
        [
            (slot + g * NUM_SLOTS, i, block + g)
            for g in range(groups)
            for slot, i, block in step.updates
        ],
        step.samples,
    )
    tables = rng.integers(0, 5000, (groups, NUM_SLOTS, 80)).astype("int32")
    expected = tables.copy()
    for slot, index, block in step.updates:
        expected[slot // NUM_SLOTS, slot % NUM_SLOTS, index] = block
    table = torch.from_numpy(tables).cuda()
    last = torch.zeros(NUM_SLOTS, dtype=torch.int32).cuda()
    T = step.num_tokens
    out = prepare(step, DIMS, table, last, T + 13, 37, S_pad=len(step.samples) + 3)
    assert torch.equal(table.cpu(), torch.from_numpy(expected))
    for g in range(groups):
        kv = [
            int(expected[g, row.slot, p // 16]) * 16 + p % 16
            for row in step.rows
            for p in range(row.start, row.start + row.num_tokens)
        ]
        assert torch.equal(out.kv_slot[g], u32(kv + [NONE] * 13))
