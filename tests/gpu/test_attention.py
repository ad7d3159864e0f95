"""Rotation with KV write, and paged attention, against float64."""

import pytest
import torch
from builds import PROMPT_HEAD_DIMS, SINK_HEAD_DIM, WIDE_HEAD_DIM
from contract import CONSTANTS, FORMULAS
from device import Kernels, poison, relative_error, u32
from step import NONE, PagedKv, Row, Step, prepare, random_kv, random_tables

DTYPES = {"bf16": (torch.bfloat16, 0, 4e-3), "f16": (torch.float16, 1, 8e-4)}
NUM_SLOTS = 40


def shared_bytes(head_dim, stages):
    return FORMULAS["attention_shared_bytes"](head_dim, stages, 2)


def reference_attention(
    q, k, v, start, scale, softcap, window, causal=True, sinks=None, chunks=False
):
    """q [n, heads, d], k and v [len, kv_heads, d], all float64; queries at start, start + 1, ..."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = torch.einsum("nhd,thd->hnt", q, k) * scale
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    p = start + torch.arange(q.shape[0], device="cuda")[:, None]
    t = torch.arange(k.shape[0], device="cuda")[None, :]
    first = 0 * p if not window else p - p % window if chunks else p + 1 - window
    seen = ((t <= p) if causal else (t >= 0) & (p >= 0)) & (t >= first)
    s = s.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.double()[:, None, None].expand(-1, s.shape[1], 1)], -1)
    return torch.einsum("hnt,thd->nhd", s.softmax(-1)[..., : k.shape[0]], v)


def run_attention(
    rows,
    heads,
    kv_heads,
    head_dim,
    name="bf16",
    block_size=64,
    window=0,
    softcap=0.0,
    no_split=False,
    exact=True,
    grid=264,
    pad=5,
    stages=3,
    layers=2,
    chunk=8192,
    causal=True,
    prompts=False,
    has_sinks=False,
    chunks=False,
):
    """Runs rows of (start, num_tokens), each cut into chunks, and returns (out, reference).

    With `prompts`, those of more than one token go through attention_prefill. With `chunks`, a
    token sees what lies in its own chunk of `window` tokens.
    """
    dtype, flag, _ = DTYPES[name]
    stages = min(stages, 2) if head_dim > 256 else stages
    slots = list(range(len(rows)))[::-1]
    lengths = {slot: start + num for slot, (start, num) in zip(slots, rows, strict=True)}
    max_blocks = 8448 // block_size
    table, total = random_tables(lengths, NUM_SLOTS, max_blocks, block_size)
    kv, dense = random_kv(table, total, lengths, kv_heads, block_size, head_dim, dtype, layers)
    parts = []
    for slot, (start, num) in zip(slots, rows, strict=True):
        for done in range(0, num, chunk):
            size = min(chunk, num - done)
            parts.append(Row(slot, start + done, size, [0] * size, prompts and size > 1))
    step = Step(parts)
    dims = {
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "block_size": block_size,
        "max_blocks": max_blocks,
        "num_slots": NUM_SLOTS,
        "vocab_size": 10,
    }
    T = step.num_tokens
    last = torch.zeros(NUM_SLOTS, dtype=torch.int32, device="cuda")
    tile = FORMULAS["attention_tile"](head_dim)
    prompt_tile = FORMULAS["prompt_tile"](head_dim)
    kind = {
        "window": window,
        "flags": CONSTANTS["KIND_CHUNKS"] + CONSTANTS["KIND_PROMPTS"],
        "num_kv_heads": kv_heads,
        "kv_tile": tile,
        "grid": grid,
        "prompt_tile": prompt_tile,
    }
    prepared = prepare(
        step,
        dims,
        table,
        last,
        T + pad,
        grid,
        (window,),
        tile,
        no_split,
        exact=exact,
        causal=causal,
        split=prompts,
        prompt_tile=prompt_tile,
        kinds=[kind] if chunks else None,
    )
    plan = prepared.plans[0]
    generator = torch.Generator("cuda").manual_seed(3)  # the first rows are the same in any batch
    q = torch.cat(
        [torch.randn(n, heads, head_dim, device="cuda", generator=generator) for _, n in rows]
    )
    q = torch.cat([q, torch.zeros(pad, heads, head_dim, device="cuda")]).to(dtype)
    q[T:] = float("nan")
    out = poison(T + pad, heads, head_dim, dtype=dtype)
    partials = poison(2 * grid * 64 * (head_dim + 2), dtype=torch.float32)
    counters = torch.zeros(grid, dtype=torch.int32, device="cuda")
    scale = head_dim**-0.5
    defines = {
        "ACT_DTYPE": flag,
        "HEAD_DIM": head_dim,
        "ATTN_STAGES": stages,
        "CAUSAL": int(causal),
        "SINKS": int(has_sinks),
        "CHUNKS": int(chunks),
    }
    kernels = Kernels("attention", dims, exact, **defines)
    # Far below the scores, among them and above.
    sinks = torch.randn(heads, device="cuda") * 4 if has_sinks else None
    rules = (scale, softcap, window, sinks)
    arguments = (q, out, plan, table, *kv.arguments, partials, counters, *rules)
    smem = shared_bytes(head_dim, stages)
    shared = {"SINKS": int(has_sinks), "CHUNKS": int(chunks)}
    defines = {"ACT_DTYPE": flag, "HEAD_DIM": head_dim} | shared
    prompt_kernels = Kernels("attention_prefill", dims, exact, **defines)
    prompt_smem = FORMULAS["prompt_shared_bytes"](head_dim, 2)
    kv_map = kv.map(prompt_tile) if prompts else None

    threads = FORMULAS["attention_threads"](head_dim)

    def run():
        kernels.launch(f"attention_paged_{name}_sm80", grid, threads, *arguments, smem=smem)
        if not prompts:
            return
        counter = prepared.prompt_counters[1:2].zero_()
        prompt_kernels.launch(
            f"attention_prefill_{name}_sm90",
            min(grid, 132),
            384,
            *(q, out, prepared.prompt_plans[0], table, kv_map, counter, *rules),
            smem=prompt_smem,
        )

    run()
    assert not counters.any()
    first = out.clone()
    for _ in range(3):
        run()
        assert torch.equal(out, first), "runs differ"
    assert not out[T:].any()
    reference, at = [], 0
    for slot, (start, num) in zip(slots, rows, strict=True):
        k, v = dense[slot].double()
        reference.append(
            reference_attention(
                q[at : at + num].double(),
                *(k, v, start, scale, softcap, window, causal, sinks, chunks),
            )
        )
        at += num
    return out[:T], torch.cat(reference)


EDGES = [
    (0, 1),
    (14, 1),
    (15, 1),
    (16, 1),
    (30, 1),  # lengths around a tile: 32 tokens with a head of 256, else 64
    (31, 1),
    (32, 1),
    (62, 1),
    (63, 1),
    (64, 1),
    (127, 1),
    (999, 1),
    (4094, 1),
    (8191, 1),
]
CHUNKS = [
    (0, 2),
    (0, 15),
    (3, 16),
    (0, 17),
    (0, 31),
    (0, 32),
    (1, 32),
    (60, 63),
    (0, 64),
    (64, 65),
    (100, 200),
    (1000, 129),
    (0, 1025),
]
MIXED = [(300, 1), (5, 1), (2000, 1), (0, 77), (512, 40), (64, 1), (0, 3)]


@pytest.mark.parametrize(
    "rows",
    [EDGES, CHUNKS, MIXED, EDGES[-1:], [(0, 1)]],
    ids=["decode", "prefill", "mixed", "long", "one"],
)
@pytest.mark.parametrize("head_dim", [16, 32, 64, 96, 128, 256, WIDE_HEAD_DIM])
@pytest.mark.parametrize("name", DTYPES)
def test_attention_is_near_float64(name, head_dim, rows):
    out, reference = run_attention(rows, 8, 2, head_dim, name)
    assert relative_error(out, reference) < DTYPES[name][2]


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(1, 1), (4, 4), (6, 2), (7, 1), (8, 1), (16, 1), (32, 1), (40, 2)]
)
@pytest.mark.parametrize("no_split", [False, True])
def test_any_number_of_heads_shares_keys_and_values(heads, kv_heads, no_split):
    out, reference = run_attention(MIXED, heads, kv_heads, 64, no_split=no_split)
    assert relative_error(out, reference) < 4e-3


@pytest.mark.parametrize("block_size", [4, 16, 32, 128, 256])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("head_dim", [128, WIDE_HEAD_DIM])
def test_any_block_size_gives_the_same_attention(head_dim, block_size, exact):
    out, reference = run_attention(MIXED, 8, 2, head_dim, block_size=block_size, exact=exact)
    assert relative_error(out, reference) < 4e-3


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 1), (4, 4), (8, 1), (16, 1), (32, 4)])
@pytest.mark.parametrize("no_split", [False, True])
@pytest.mark.parametrize("grid", [1, 7, 132])
def test_slices_of_wide_heads_in_any_group_and_grid(grid, heads, kv_heads, no_split):
    setting = {"no_split": no_split, "grid": grid, "softcap": 2.0, "window": 700}
    out, reference = run_attention(MIXED, heads, kv_heads, WIDE_HEAD_DIM, **setting)
    assert relative_error(out, reference) < 4e-3


@pytest.mark.parametrize("rows", [EDGES, CHUNKS, MIXED], ids=["decode", "prefill", "mixed"])
@pytest.mark.parametrize("chunk", [1, 7, 32, 100, 1024, 9000])
@pytest.mark.parametrize(("head_dim", "no_split"), [(64, False), (128, True), (256, False)])
def test_a_token_sees_its_own_chunk(head_dim, no_split, chunk, rows):
    setting = {"window": chunk, "chunks": True, "no_split": no_split}
    out, reference = run_attention(rows, 8, 2, head_dim, **setting)
    assert relative_error(out, reference) < 4e-3


@pytest.mark.parametrize("window", [1, 16, 63, 64, 65, 300, 5000])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_a_window_hides_what_lies_behind_it(window, head_dim):
    out, reference = run_attention([*MIXED, (900, 150)], 8, 4, head_dim, window=window)
    assert relative_error(out, reference) < 4e-3


@pytest.mark.parametrize("head_dim", [64, 256])
def test_scores_are_capped(head_dim):
    out, reference = run_attention(MIXED, 8, 4, head_dim, softcap=2.0)
    assert relative_error(out, reference) < 4e-3


@pytest.mark.parametrize(
    "rows", [EDGES, CHUNKS, MIXED, EDGES[-1:]], ids=["decode", "prefill", "mixed", "long"]
)
@pytest.mark.parametrize("no_split", [False, True])
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("name", DTYPES)
def test_sinks_take_their_part_of_the_weights(name, window, no_split, rows):
    setting = {"window": window, "no_split": no_split, "has_sinks": True}
    out, reference = run_attention(rows, 8, 2, SINK_HEAD_DIM, name, **setting)
    assert relative_error(out, reference) < DTYPES[name][2]


@pytest.mark.parametrize("grid", [1, 7, 132, 528])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_grids_and_stages(grid, stages):
    out, reference = run_attention(MIXED, 4, 2, 128, grid=grid, stages=stages)
    assert relative_error(out, reference) < 4e-3


WHOLE = [(0, n) for n in (1, 3, 4, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 300, 1025)]


@pytest.mark.parametrize("rows", [WHOLE, WHOLE[-1:], WHOLE[:1]], ids=["batch", "long", "one"])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 96, 128, 256])
@pytest.mark.parametrize("name", DTYPES)
def test_whole_sequences_are_seen_without_causality(name, head_dim, rows):
    out, reference = run_attention(rows, 8, 2, head_dim, name, causal=False)
    assert relative_error(out, reference) < DTYPES[name][2]


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (7, 1), (32, 1)])
@pytest.mark.parametrize("no_split", [False, True])
@pytest.mark.parametrize("exact", [True, False])
def test_groups_without_causality(heads, kv_heads, no_split, exact):
    setting = {"no_split": no_split, "exact": exact, "causal": False, "grid": 37}
    out, reference = run_attention(WHOLE, heads, kv_heads, 64, softcap=2.0, **setting)
    assert relative_error(out, reference) < 4e-3


def test_pages_beyond_4_gib():
    out, reference = run_attention(MIXED, 8, 2, 128, layers=2000)
    assert relative_error(out, reference) < 4e-3


def test_no_split_does_not_depend_on_the_batch():
    row = (2000, 1)
    results = []
    for others in ([], [(77, 1), (0, 300)]):
        torch.manual_seed(7)
        out, _ = run_attention([row, *others], 8, 2, 128, no_split=True)
        results.append(out[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("head_dim", [64, 128, 256, WIDE_HEAD_DIM])
def test_no_split_does_not_depend_on_the_chunk(head_dim, window):
    """Chunks of few tokens would be decodes otherwise."""
    results = []
    for chunk in (8192, 64, 37, 3, 1):
        torch.manual_seed(7)
        rows = [(40, 150), (0, 70)]
        out, _ = run_attention(rows, 8, 2, head_dim, window=window, no_split=True, chunk=chunk)
        results.append(out)
    assert all(torch.equal(result, results[0]) for result in results)


needs_hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
    reason="attention_prefill is for compute capability 9.0",
)


@needs_hopper
@pytest.mark.parametrize("rows", [CHUNKS, MIXED, [(0, 2048)]], ids=["prefill", "mixed", "long"])
@pytest.mark.parametrize("head_dim", PROMPT_HEAD_DIMS)
@pytest.mark.parametrize("name", DTYPES)
def test_prompt_attention_is_near_float64(name, head_dim, rows):
    out, reference = run_attention(rows, 8, 2, head_dim, name, prompts=True)
    assert relative_error(out, reference) < DTYPES[name][2]


@needs_hopper
@pytest.mark.parametrize("rows", [CHUNKS, MIXED, [(0, 2048)]], ids=["prefill", "mixed", "long"])
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("name", DTYPES)
def test_prompt_attention_with_sinks(name, window, rows):
    setting = {"window": window, "prompts": True, "has_sinks": True}
    out, reference = run_attention(rows, 8, 2, SINK_HEAD_DIM, name, **setting)
    assert relative_error(out, reference) < DTYPES[name][2]


@needs_hopper
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (6, 2), (7, 1), (16, 1), (40, 2)])
@pytest.mark.parametrize("exact", [True, False])
def test_prompt_attention_of_groups(heads, kv_heads, exact):
    out, reference = run_attention(MIXED, heads, kv_heads, 64, prompts=True, exact=exact)
    assert relative_error(out, reference) < 4e-3


@needs_hopper
@pytest.mark.parametrize("block_size", [8, 16, 32, 128, 256])
@pytest.mark.parametrize("head_dim", [96, 256])
def test_prompt_attention_of_block_sizes(block_size, head_dim):
    out, reference = run_attention(MIXED, 8, 2, head_dim, block_size=block_size, prompts=True)
    assert relative_error(out, reference) < 4e-3


@needs_hopper
@pytest.mark.parametrize("window", [1, 63, 64, 65, 300, 5000])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_prompt_attention_in_a_window(window, head_dim):
    rows = [*MIXED, (900, 150)]
    out, reference = run_attention(rows, 8, 4, head_dim, window=window, prompts=True)
    assert relative_error(out, reference) < 4e-3


@needs_hopper
@pytest.mark.parametrize("chunk", [1, 63, 128, 300, 5000])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("exact", [True, False])
def test_prompt_attention_in_chunks(exact, head_dim, chunk):
    rows = [*MIXED, (900, 150), (0, 1025)]
    setting = {"window": chunk, "chunks": True, "prompts": True, "exact": exact}
    out, reference = run_attention(rows, 8, 4, head_dim, **setting)
    assert relative_error(out, reference) < 4e-3


@needs_hopper
@pytest.mark.parametrize("grid", [1, 7, 132])
def test_prompt_attention_takes_any_grid(grid):
    rows = [*MIXED, (0, 700), (3000, 400)]
    out, reference = run_attention(rows, 8, 4, 128, grid=grid, softcap=2.0, prompts=True)
    assert relative_error(out, reference) < 4e-3


@needs_hopper
def test_a_prompt_does_not_depend_on_its_neighbours():
    results = []
    for others in ([], [(77, 1), (0, 300), (5000, 130)]):
        torch.manual_seed(7)
        out, _ = run_attention([(100, 300), *others], 8, 2, 128, prompts=True)
        results.append(out[:300])
    assert torch.equal(*results)


ROTARY = [(16, 16), (32, 32), (32, 16), (64, 64), (96, 96), (96, 32), (128, 128), (128, 64)]


@pytest.mark.parametrize("style", [0, 1])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(("head_dim", "rotary"), [*ROTARY, (256, 256)])
@pytest.mark.parametrize("extras", [False, True])
def test_keys_are_rotated_and_written_to_their_blocks(name, head_dim, rotary, style, extras):
    heads, kv_heads, block_size, length = 6, 2, 16, 20000
    dims = {
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "rotary_dim": rotary,
        "block_size": block_size,
    }
    kernels = Kernels("rope_kv", dims, extras, ACT_DTYPE=DTYPES[name][1], HEAD_DIM=head_dim)
    half = rotary // 2
    inv = torch.tensor([500000 ** (-2 * i / rotary) for i in range(half)], device="cuda")
    table = poison(length, half, 2, dtype=torch.float32)
    arguments = (inv, 1.25, table, length, half)
    kernels.launch("rope_table_f32_sm80", -(-length * half // 256), 256, *arguments, dims=False)
    angle = (torch.arange(length, device="cuda").float()[:, None] * inv).double()
    expected = torch.stack([angle.cos(), angle.sin()], -1) * 1.25
    assert float((table - expected).abs().max()) < 2e-7
    for T in (1, 8, 19, 257):
        sizes = (T, heads, kv_heads, head_dim, block_size)
        check_rope_kv(kernels, name, sizes, style, table, expected, extras)
    check_rope_kv(kernels, name, sizes, style, table, expected, extras, rotates=False)
    if extras:
        for macro in ("FULL_NORM", "QUERY_SCALE"):
            defines = {"ACT_DTYPE": DTYPES[name][1], "HEAD_DIM": head_dim, macro: 1}
            kernels = Kernels("rope_kv", dims, extras, **defines)
            check_rope_kv(kernels, name, sizes, style, table, expected, extras, macro=macro)


def check_rope_kv(kernels, name, sizes, style, table, expected, extras, rotates=True, macro=None):
    """T tokens at random positions; one of them, unless it is alone, writes no KV.

    `extras`: a raw product, with bias and norms; `macro`: what the kernels were built with.
    """
    (dtype, _, tolerance), (T, heads, kv_heads, head_dim, block_size) = DTYPES[name], sizes
    num_blocks, width = T // block_size + 2, (heads + 2 * kv_heads) * head_dim
    qkv = torch.randn(T, width, device="cuda").to(dtype)
    bias = torch.randn(width, device="cuda") if extras else None
    scales = [torch.rand(n, device="cuda") + 0.5 if extras else None for n in (T, width)]
    widths = (heads, kv_heads) if macro == "FULL_NORM" else (1, 1)
    norms = [torch.rand(n * head_dim, device="cuda") + 0.5 if extras else None for n in widths]
    positions = torch.randint(0, len(table), (T,))
    kv_slot = (torch.randperm(num_blocks * block_size)[:T]).tolist()
    if T > 3:
        kv_slot[3] = NONE
    q = poison(T, heads, head_dim, dtype=dtype)
    kv = PagedKv(poison(num_blocks, 2, 2, kv_heads, block_size, head_dim, dtype=dtype), 1)
    grid = (T, -(-(heads + 2 * kv_heads) // 8))
    places = (table if rotates else None, u32(positions), u32(kv_slot))
    scale = (0.3, 1000) if macro == "QUERY_SCALE" else (0.0, 1)
    arguments = (qkv, *scales, bias, *norms, *places, q, *kv.arguments, 1e-6, style, *scale)
    kernels.launch(f"rope_kv_paged_{name}_sm80", grid, 256, *arguments)
    x = qkv.double()
    if extras:
        x = x * scales[0][:, None].double() * scales[1].double() + bias.double()
    x = x.view(T, heads + 2 * kv_heads, head_dim)
    for part, norm in ((slice(0, heads), norms[0]), (slice(heads, heads + kv_heads), norms[1])):
        if norm is not None:
            y = x[:, part]
            over = (1, 2) if macro == "FULL_NORM" else -1
            y = y * (y.square().mean(over, keepdim=True) + 1e-6).rsqrt()
            x[:, part] = y * norm.double().view(-1, head_dim)
    turned = x[:, : heads + kv_heads]
    if rotates:
        turned = rotated(turned, expected[positions], style)
    x = torch.cat([turned, x[:, heads + kv_heads :]], 1)
    if macro == "QUERY_SCALE":
        lengths = (positions // scale[1]).double().cuda()
        x[:, :heads] *= (1 + scale[0] * (1 + lengths).log())[:, None, None]
    assert relative_error(q, x[:, :heads]) < tolerance
    stored = [t for t, slot in enumerate(kv_slot) if slot != NONE]
    blocks, places = zip(*(divmod(kv_slot[t], block_size) for t in stored), strict=True)
    got = kv.pool[list(blocks), 1, :, :, list(places)]  # [stored, 2, kv_heads, head_dim]
    want = x[stored, heads:].view(len(stored), 2, kv_heads, head_dim)
    assert relative_error(got, want) < tolerance
    written = torch.isfinite(kv.pool).all(-1).sum()
    assert int(written) == len(stored) * 2 * kv_heads


KEYS, NO_KEYS = {"KEY_PARTS": 1}, {"KEY_PARTS": 0}
VALUES, PART = {"VALUE_NORM": 1}, {"ROTARY_PART": 1}
# Layers of Gemma 4, of Llama 4.
RULES = {
    "window": VALUES,
    "window, others' keys": NO_KEYS,
    "full": VALUES | PART,
    "full, values are keys": VALUES | KEYS | PART,
    "full, others' keys": NO_KEYS | PART,
    "chunk": {"UNWEIGHTED_NORM": 1, "QUERY_SCALE": 2},
}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("head_dim", [32, 64, 128, 256, WIDE_HEAD_DIM])
def test_what_families_do_to_queries_keys_and_values(head_dim, rule, name, exact):
    macros = RULES[rule]
    dtype, flag, tolerance = DTYPES[name]
    heads, kv_heads, block_size, T, length = 6, 2, 16, 37, 3000
    pairs = head_dim // 8 if "ROTARY_PART" in macros else head_dim // 2
    parts, style = macros.get("KEY_PARTS", 2), 1 if "UNWEIGHTED_NORM" in macros else 0
    dims = {"num_heads": heads, "num_kv_heads": kv_heads, "block_size": block_size}
    dims |= {"rotary_dim": head_dim, "rotary_pairs": pairs if "ROTARY_PART" in macros else 0}
    kernels = Kernels("rope_kv", dims, exact, ACT_DTYPE=flag, HEAD_DIM=head_dim, **macros)
    angle = torch.rand(length, pairs, device="cuda").double() * 7
    table = torch.stack([angle.cos(), angle.sin()], -1)
    qkv = torch.randn(T, heads + parts * kv_heads, head_dim, device="cuda").to(dtype)
    weights = [torch.rand(head_dim, device="cuda") + 0.5 for _ in range(2)]
    if "UNWEIGHTED_NORM" in macros:
        weights = [None, None]
    positions = torch.randint(0, length, (T,))
    num_blocks = T // block_size + 2
    kv_slot = torch.randperm(num_blocks * block_size)[:T].tolist()
    for rotates in (True, False):
        q = poison(T, heads, head_dim, dtype=dtype)
        kv = PagedKv(poison(num_blocks, 2, 2, kv_heads, block_size, head_dim, dtype=dtype), 1)
        grid = (T, -(-(heads + (2 if parts else 0) * kv_heads) // 8))
        places = (table.float() if rotates else None, u32(positions), u32(kv_slot))
        arguments = (qkv, None, None, None, *weights, *places, q, *kv.arguments)
        kernels.launch(f"rope_kv_paged_{name}_sm80", grid, 256, *arguments, 1e-6, style, 0.3, 100)
        x = qkv.double()
        values = x[:, heads + (kv_heads if parts == 2 else 0) :].clone() if parts else x[:, :0]
        turned = x[:, : heads + (kv_heads if parts else 0)].clone()
        if weights[0] is not None or rotates:
            turned *= (turned.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        if weights[0] is not None:
            turned[:, :heads] *= weights[0].double()
            turned[:, heads:] *= weights[1].double()
        if rotates:
            turned = rotated_pairs(turned, table[positions], head_dim, style)
        elif macros.get("QUERY_SCALE"):
            grown = 1 + 0.3 * (1 + (positions + 1).div(100, rounding_mode="floor")).double().log()
            turned[:, :heads] *= grown.cuda()[:, None, None]
        if "VALUE_NORM" in macros:
            values *= (values.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        assert relative_error(q, turned[:, :heads]) < tolerance
        if not parts:
            assert torch.isnan(kv.pool).all()
            continue
        blocks, places = zip(*(divmod(slot, block_size) for slot in kv_slot), strict=True)
        got = kv.pool[list(blocks), 1, :, :, list(places)]  # [T, 2, kv_heads, head_dim]
        want = torch.stack([turned[:, heads:], values], 1)
        assert relative_error(got, want) < tolerance
        assert int(torch.isfinite(kv.pool).all(-1).sum()) == T * 2 * kv_heads


def rotated_pairs(x, angles, rotary, style):
    """As `rotated`, with angles for the first pairs of `rotary` elements alone."""
    pairs = torch.zeros(len(x), rotary // 2, 2, dtype=torch.float64, device="cuda")
    pairs[..., 0] = 1
    pairs[:, : angles.shape[1]] = angles
    return rotated(x, pairs, style)


def rotated(x, angles, style):
    """x [T, heads, dim] turned by (cos, sin) [T, rotary / 2, 2]; what is beyond stays."""
    rotary = 2 * angles.shape[1]
    cos, sin = angles[:, None].unbind(-1)
    r = x[..., :rotary]
    a, b = r.chunk(2, -1) if style == 0 else (r[..., ::2], r[..., 1::2])
    pair = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.cat(pair, -1) if style == 0 else torch.stack(pair, -1).flatten(-2)
    return torch.cat([turned, x[..., rotary:]], -1)
