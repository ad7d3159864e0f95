"""Microseconds and TB/s of the kernels for Llama-3.1-8B's shapes, in graphs, with a cold L2.

Run: python bench.py [attention] [small] [gemm] [chain] [sampler] [ranks] [delta]
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from builds import StreamTile
from contract import CONSTANTS
from device import Kernels, graph_us, u32
from sampler_definition import Params
from sampling import prepare_sampler
from step import PagedKv, Row, Step, prepare
from test_attention import shared_bytes
from test_delta_net import NETS, Layer
from test_ranks import Group

DIMS = {
    "vocab_size": 128256,
    "sample_vocab": 128256,
    "hidden_size": 4096,
    "num_heads": 32,
    "num_kv_heads": 8,
    "rotary_dim": 128,
    "block_size": 64,
    "max_blocks": 256,
    "num_slots": 288,
    "intermediate_size": 14336,
}
BF16 = torch.bfloat16


def report(name: str, us: float, nbytes: float, flop: float = 0.0) -> None:
    tera = f"{flop / us / 1e6:7.1f} TFLOP/s" if flop else ""
    print(f"{name:44s} {us:9.2f} us {nbytes / us / 1e6:7.3f} TB/s {tera}", flush=True)


def attention(stages: int = 3, per_sm: int = 2) -> None:
    grid = torch.cuda.get_device_properties(0).multi_processor_count * per_sm
    cases = {
        "decode 1 x 256": [(255, 1)],
        "decode 1 x 1k": [(1023, 1)],
        "decode 1 x 8k": [(8191, 1)],
        "decode 16 x 256": [(255, 1)] * 16,
        "decode 64 x 256": [(255, 1)] * 64,
        "decode 200 x 256": [(255, 1)] * 200,
        "decode 200 x 320..": [(128 + 2 * i, 1) for i in range(200)],
        "decode 200 x 1k": [(1023, 1)] * 200,
        "decode 64 x 8k": [(8191, 1)] * 64,
        "prefill 1 x 220": [(0, 220)],
        "prefill 1 x 2048": [(0, 2048)],
        "prefill 2048 at 6k": [(6144, 2048)],
        "mixed 200 x 320 + 220": [(319, 1)] * 200 + [(0, 220)],
    }
    heads, kv_heads, d, layers = 32, 8, 128, 4
    kernels = Kernels("attention", DIMS, HEAD_DIM=d, ATTN_STAGES=stages)
    for name, rows in cases.items():
        blocks = [-(-(start + num) // 64) for start, num in rows]
        table = torch.zeros(288, 256, dtype=torch.int32)
        order, at = torch.randperm(sum(blocks)).int(), 0
        for slot, count in enumerate(blocks):
            table[slot, :count] = order[at : at + count]
            at += count
        table = table.cuda()
        pool = torch.randn(sum(blocks), layers, 2, kv_heads, 64, d, device="cuda", dtype=BF16)
        step = Step([Row(i, start, num, [0] * num) for i, (start, num) in enumerate(rows)])
        T = step.num_tokens
        last = torch.zeros(288, dtype=torch.int32, device="cuda")
        plan = prepare(step, DIMS, table, last, T, grid).plans[0]
        q = torch.randn(T, heads, d, device="cuda", dtype=BF16)
        out = torch.empty_like(q)
        partials = torch.empty(2 * grid * 64 * (d + 2), device="cuda")
        counters = torch.zeros(grid, dtype=torch.int32, device="cuda")
        flush = (
            torch.empty(64 << 20, dtype=torch.int32, device="cuda") if pool.nbytes < 4e8 else None
        )

        def launch(flushed=True, run=True):
            for layer in range(layers):
                if flush is not None and flushed:
                    flush.zero_()
                if run:
                    kernels.launch(
                        "attention_paged_bf16_sm80",
                        grid,
                        128,
                        q,
                        out,
                        plan,
                        table,
                        *PagedKv(pool, layer).arguments,
                        partials,
                        counters,
                        d**-0.5,
                        0.0,
                        0,
                        None,
                        smem=shared_bytes(d, stages),
                    )

        us = graph_us(launch)
        if flush is not None:
            us -= graph_us(lambda: launch(True, False))
        us /= layers
        tokens = sum(start + num for start, num in rows)
        pairs = sum(num * (start + (num + 1) / 2) for start, num in rows)
        report(
            f"attention {name} (stages {stages})",
            us,
            tokens * kv_heads * d * 4,
            pairs * 4 * heads * d,
        )


SHAPES = {
    "qkv": (6144, 4096, 0),
    "o": (4096, 4096, 1),
    "gate_up": (28672, 4096, 2),
    "down": (4096, 14336, 1),
    "lm_head": (128256, 4096, 3),
}


def gemm(most_rows=(1, 8, 16)) -> None:
    """gemm_stream's builds for each shape: microseconds without and with programmatic launch."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    options = [(4, 4, 0, 1), (4, 4, 1, 1), (4, 2, 1, 1), (6, 2, 0, 2)]
    jobs = []
    for name, (n, k, epilogue) in SHAPES.items():
        for rows in most_rows:
            for stages, steps, x_shared, per_sm in options:
                tile = StreamTile(max(8, rows), stages, steps, bool(x_shared))
                smem = tile.shared_bytes(k, epilogue)
                if (smem + 1024) * per_sm > 227 * 1024:
                    continue
                dims = {"gemm_n": n, "gemm_k": k}
                kernels = Kernels("gemm_stream", dims, **tile.defines(epilogue))
                what = f"{stages}x{steps} x{x_shared} {per_sm}/SM"
                jobs.append((name, rows, what, per_sm * sms, smem, kernels))
    with ThreadPoolExecutor(14) as pool:
        list(pool.map(lambda job: job[-1].compile(), jobs))
    weights: dict = {}
    for name, rows, what, grid, smem, kernels in jobs:
        n, k, epilogue = SHAPES[name]
        if name not in weights:
            copies = max(2, int(5e8 // (n * k * 2)))
            weights = {name: torch.randn(copies, n, k, device="cuda", dtype=BF16)}
        w, x = weights[name], torch.randn(rows, k, device="cuda", dtype=BF16)
        gated, plain = epilogue == 2, epilogue == 0
        width = n // 2 if gated else n
        out = torch.zeros(
            rows, width, device="cuda", dtype=BF16 if gated or plain else torch.float32
        )
        grid = min(grid, width // 16)

        def launch(pdl: bool) -> None:
            for weight in w:
                kernels.launch(
                    "gemm_stream_bf16_sm80",
                    grid,
                    256,
                    x,
                    weight,
                    None,
                    out,
                    rows,
                    0,
                    smem=smem,
                    pdl=pdl,
                )

        for pdl in (False, True):
            us = graph_us(lambda pdl=pdl: launch(pdl), 8) / len(w)
            report(f"gemm {name} rows {rows} {what} pdl {int(pdl)}", us, n * k * 2)


def chain(layers: int = 8, context: int = 1024) -> None:
    """A step of one row, layer after layer, without its head: what builds do to each other."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    rand = lambda *shape, dtype=BF16: torch.randn(*shape, device="cuda", dtype=dtype) / 64  # noqa: E731
    shapes = {name: SHAPES[name] for name in ("qkv", "o", "gate_up", "down")}
    weights = {name: rand(layers, n, k) for name, (n, k, _) in shapes.items()}
    table = torch.arange(256, dtype=torch.int32, device="cuda").expand(288, 256).contiguous()
    pool = rand(context // 64 + 1, layers, 2, 8, 64, 128)
    last = torch.zeros(288, dtype=torch.int32, device="cuda")
    step = Step([Row(0, context - 1, 1, [0])])
    ready = prepare(step, DIMS, table, last, 1, 2 * sms)
    angles, ones = rand(context, 64, 2, dtype=torch.float32), torch.ones(4096, device="cuda")
    residual, x, qkv, q = (
        rand(1, 4096, dtype=torch.float32),
        rand(1, 4096),
        rand(1, 6144),
        rand(1, 4096),
    )
    mixed, gated = rand(1, 4096), rand(1, 14336)
    partials = torch.empty(4 * sms * 64 * 130, device="cuda")
    counters = torch.zeros(2 * sms, dtype=torch.int32, device="cuda")
    norm, rope = Kernels("rms_norm", DIMS), Kernels("rope_kv", DIMS, HEAD_DIM=128)
    attend = Kernels("attention", DIMS, HEAD_DIM=128, ATTN_STAGES=3)
    # (stages, steps, x in shared memory) of each product
    base = {"qkv": (4, 4, 0), "o": (4, 4, 0), "gate_up": (4, 2, 1), "down": (4, 4, 0)}
    plans = {"best alone": base, "qkv, down 6x4": base | {"qkv": (6, 4, 0), "down": (6, 4, 0)}}
    for what, plan in plans.items():
        built = {}
        for name, (stages, steps, x_shared) in plan.items():
            n, k, epilogue = shapes[name]
            tile = StreamTile(8, stages, steps, bool(x_shared))
            kernels = Kernels("gemm_stream", {"gemm_n": n, "gemm_k": k}, **tile.defines(epilogue))
            built[name] = kernels, tile.shared_bytes(k, epilogue)

        def launch(pdl: bool, built: dict = built) -> None:
            def product(name: str, layer: int, source, target) -> None:
                kernels, smem = built[name]
                arguments = (source, weights[name][layer], None, target, 1, 0)
                kernels.launch("gemm_stream_bf16_sm80", sms, 256, *arguments, smem=smem, pdl=pdl)

            def normalise() -> None:
                arguments = (residual, None, ones, x, 1e-5)
                norm.launch("rms_norm_rows_bf16_sm80", 1, 1024, *arguments, pdl=pdl)

            for layer in range(layers):
                kv = PagedKv(pool, layer).arguments
                normalise()
                product("qkv", layer, x, qkv)
                arguments = (
                    None,
                    None,
                    None,
                    None,
                    None,
                    angles,
                    ready.positions,
                    ready.kv_slot,
                    q,
                    *kv,
                    1e-5,
                    0,
                    0.0,
                    1,
                )
                rope.launch("rope_kv_paged_bf16_sm80", (1, 6), 256, qkv, *arguments, pdl=pdl)
                arguments = (table, *kv, partials, counters, 128**-0.5, 0.0, 0, None)
                attend.launch(
                    "attention_paged_bf16_sm80",
                    2 * sms,
                    128,
                    q,
                    mixed,
                    ready.plans[0],
                    *arguments,
                    smem=shared_bytes(128, 3),
                    pdl=pdl,
                )
                product("o", layer, mixed, residual)
                normalise()
                product("gate_up", layer, x, gated)
                product("down", layer, gated, residual)

        plain, early = (graph_us(lambda pdl=pdl: launch(pdl)) / layers for pdl in (False, True))
        print(
            f"chain {what:18s} a layer: {plain:6.1f} us plain, {early:6.1f} us started early",
            flush=True,
        )


def sampler() -> None:
    for rows in (1, 64, 200):
        # As a language model's: a bulk, and a few hundred likely tokens above it.
        logits = torch.randn(rows, 128256, device="cuda") * 2.2
        likely = torch.randint(0, 128256, (rows, 300), device="cuda")
        heights = torch.empty(rows, 300, device="cuda").exponential_(0.35) + 7
        logits.scatter_(1, likely, heights)
        for name, more in {
            "greedy": {},
            "temperature": {"temperature": 0.8},
            "top_p": {"temperature": 0.8, "top_p": 0.95},
            "top_k 50 top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
            "log_probs 5": {"log_probs": 5},
            "penalties": {"temperature": 0.8, "presence_penalty": 0.5},
        }.items():
            prepared = prepare_sampler(
                logits, [Params(seed=i, **more) for i in range(rows)], 128256, pad=0
            )
            us = graph_us(prepared.launch)
            report(f"sampler {name} rows {rows}", us, rows * 128256 * 4)


def small() -> None:
    for T in (1, 64, 256, 2048):
        copies = 8
        x = torch.randn(copies, T, 4096, device="cuda")
        w = torch.ones(4096, device="cuda")
        out = torch.empty(T, 4096, device="cuda", dtype=BF16)
        norm = Kernels("rms_norm", DIMS)
        for block in (256, 512, 1024):
            us = (
                graph_us(
                    lambda block=block: [
                        norm.launch("rms_norm_rows_bf16_sm80", T, block, x[i], None, w, out, 1e-5)
                        for i in range(copies)
                    ]
                )
                / copies
            )
            report(f"rms_norm T {T} block {block}", us, T * 4096 * 6)
        gate_up = torch.randn(copies, T, 28672, device="cuda", dtype=BF16)
        gated = torch.empty(T, 14336, device="cuda", dtype=BF16)
        act = Kernels("activation", DIMS)
        us = (
            graph_us(
                lambda: [
                    act.launch(
                        "act_mul_rows_bf16_sm80", (T, 7), 256, gate_up[i], None, gated, 0, 0.0
                    )
                    for i in range(copies)
                ]
            )
            / copies
        )
        report(f"act_mul T {T}", us, T * 14336 * 6)
        qkv = torch.randn(copies, T, 6144, device="cuda", dtype=BF16)
        q = torch.empty(T, 4096, device="cuda", dtype=BF16)
        table = torch.randn(4096, 64, 2, device="cuda")
        pool = torch.empty(T // 64 + 1, 1, 2, 8, 64, 128, device="cuda", dtype=BF16)
        slots = u32(list(range(T)))
        rope = Kernels("rope_kv", DIMS, HEAD_DIM=128)
        us = (
            graph_us(
                lambda: [
                    rope.launch(
                        "rope_kv_paged_bf16_sm80",
                        (T, 6),
                        256,
                        qkv[i],
                        None,
                        None,
                        None,
                        None,
                        None,
                        table,
                        slots,
                        slots,
                        q,
                        *PagedKv(pool, 0).arguments,
                        1e-5,
                        0,
                        0.0,
                        1,
                    )
                    for i in range(copies)
                ]
            )
            / copies
        )
        report(f"rope_kv T {T}", us, T * 6144 * 4)


def delta() -> None:
    """The delta rule of a layer of Qwen3.6-27B over one prompt: token by token, in chunks."""
    net = NETS[1]
    for tokens in (64, 1024, 8192):
        for chunks in (False, True):
            layer = Layer(net, "bf16", [(1, 0, tokens, [])], chunks=chunks)
            layer.run()
            step = layer.step()
            us = graph_us(lambda layer=layer, step=step: layer.rule(step))
            nbytes = tokens * (2 * net.channels + 4 * net.values) + 2 * layer.state_bytes
            report(f"delta_rule {tokens} {'in chunks' if chunks else 'token by token'}", us, nbytes)


def ranks(count: int = 2, copies: int = 64, replays: int = 20) -> None:
    """Sums over ranks that share this GPU, norm included: the launches without the link."""
    for hidden, rows in ((4096, 1), (4096, 8), (4096, 64), (8192, 64), (4096, 512)):
        group = Group(count, hidden)
        norm = torch.ones(hidden, device="cuda")
        partials, residuals = (
            [torch.zeros(rows, hidden, device="cuda") for _ in range(count)] for _ in range(2)
        )
        outs = [torch.zeros(rows, hidden, device="cuda", dtype=BF16) for _ in range(count)]
        graphs = []
        for rank in range(count):
            arguments = (rank, partials[rank], residuals[rank], outs[rank], None, None, norm)
            group.control[rank][CONSTANTS["CONTROL_ALONE"]] = 1
            torch.cuda.synchronize()
            group.reduce(*arguments)
            torch.cuda.synchronize()
            group.control[rank].zero_()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=group.streams[rank]):
                for _ in range(copies):
                    group.reduce(*arguments)
            graphs.append(graph)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        for event in events:
            event.record(group.streams[0])
            for _ in range(replays if event is events[0] else 0):
                for rank in range(count):
                    with torch.cuda.stream(group.streams[rank]):
                        graphs[rank].replay()
        torch.cuda.synchronize()
        us = events[0].elapsed_time(events[1]) * 1e3 / (copies * replays)
        report(f"ranks_reduce {count} x {rows} x {hidden}", us, count * rows * hidden * 4)


if __name__ == "__main__":
    torch.manual_seed(0)
    names = sys.argv[1:] or ["attention", "small"]
    for chosen in names:
        globals()[chosen]()
