"""Microseconds of products with 4-bit matrices, beside bf16 ones of torch, in graphs, L2 cold.

The shapes are Llama-3.1-8B's (groups of 128) and gpt-oss-120b's experts (MXFP4).
Run: python bench_four_bit.py [dense] [experts]
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from builds import (
    EXPERT_TILES,
    EXPERT_WGMMA_TILES,
    FOUR_BIT_TILES,
    WGMMA_TILES,
    FourBitTile,
    WgmmaTile,
)
from device import Kernels, graph_us, u32
from four_bit import (
    Form,
    Matrix,
    fixed_bytes,
    gemm_kernels,
    launch_gemm,
    launch_wgmma,
    wgmma_kernels,
    widen,
)
from test_four_bit_products import FORMS, expert_kernels, launch_experts
from test_four_bit_wgmma import expert_kernels as expert_wgmma_kernels
from test_four_bit_wgmma import launch_experts as launch_expert_wgmma

DENSE = {
    "qkv": (6144, 4096, 0),
    "o": (4096, 4096, 1),
    "gate_up": (28672, 4096, 2),
    "down": (4096, 14336, 1),
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048)
MOST_STREAMED = 128
"""Rows beyond which gemm_four_bit.cu is not tried."""
LARGE_BYTES = 160e6
"""What all copies of a matrix take together, so that the L2 cache does not hold them."""
SMS = 132


def noise(form: Form, n: int, k: int) -> Matrix:
    """Records of random bytes: scales too, so only times mean something."""
    size = n // 16 * form.records(k) * form.record_bytes
    packed = torch.randint(0, 64, (size,), dtype=torch.uint8, device="cuda")
    return Matrix(form, n, k, packed, torch.empty(0))


def launches(form: Form, product, rows: int) -> Iterator[tuple[FourBitTile, int, int]]:
    """Builds, blocks an SM and parts of x, as rust/cuda/src/four_bit_tile.rs tries them."""
    n, k, epilogue = product
    at_once = min(tile.rows for tile in FOUR_BIT_TILES if tile.rows >= min(rows, 64))
    for tile, per_sm in itertools.product(FOUR_BIT_TILES, (1, 2)):
        room = (227 if per_sm == 1 else 113) * 1024 - fixed_bytes(tile, form)
        fits = per_sm == 1 or tile.rows * tile.tiles <= 16
        if tile.rows != at_once or not fits or (epilogue == 2 and tile.tiles == 1):
            continue
        items = n // (16 * tile.tiles)
        kept = -(-items // (SMS * per_sm)) * tile.tiles * tile.rows * 64
        for parts in range(1, 33):
            columns = -(-form.records(k) // parts) * form.block
            bytes_of_x = min(rows, tile.rows) * (2 * columns + 16)
            if bytes_of_x + (kept if parts > 1 else 0) <= room:
                yield tile, per_sm, parts
                break


def wgmma_launches(product, rows: int) -> Iterator[tuple[WgmmaTile, int]]:
    """Builds and sizes of clusters, as rust/cuda/src/four_bit_wgmma.rs tries them."""
    n, _, epilogue = product
    at_once = min(tile.rows for tile in WGMMA_TILES if tile.rows >= min(rows, 128))
    for tile, cluster in itertools.product(WGMMA_TILES, (1, 2, 4, 8)):
        tiles = -(-n // tile.height) * -(-rows // tile.rows)
        if tile.rows != at_once or (epilogue == 2 and tile.tiles == 1):
            continue
        if cluster == 1 or tiles * cluster <= 4 * SMS:
            yield tile, cluster


def compile_all(builds: list[Kernels]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(Kernels.compile, builds))


class Product:
    """One of the model's matrices, several times in both types."""

    def __init__(self, form: Form, product) -> None:
        n, k, _ = self.product = product
        first = noise(form, n, k)
        copies = int(LARGE_BYTES // len(first.packed)) + 1
        self.own = [Matrix(form, n, k, first.packed.clone(), first.values) for _ in range(copies)]
        copies = max(2, int(LARGE_BYTES / 2 / n / k))
        self.plain = torch.randn(copies, n, k, device="cuda").bfloat16()
        self.scratch = torch.empty(n, k, device="cuda", dtype=torch.bfloat16)

    def times(self, rows: int) -> dict[str, float]:
        """Microseconds by way."""
        n, k, _ = self.product
        x = torch.randn(rows, k, device="cuda").bfloat16()
        out = torch.zeros(rows, n, device="cuda", dtype=torch.float32)
        copies = 2 if rows > MOST_STREAMED else len(self.plain)

        def bf16():
            for w in self.plain[:copies]:
                torch.mm(x, w.T)

        def widened():
            for w in self.own[:2]:
                widen(w, self.scratch)
                torch.mm(x, self.scratch.T)

        found = {"bf16": graph_us(bf16, 5) / copies}
        if rows >= 64:
            found["widened"] = graph_us(widened, 5) / 2
        found |= self.wgmma_times(x, out)
        return found | (self.stream_times(x, out) if rows <= MOST_STREAMED else {})

    def wgmma_times(self, x, out) -> dict[str, float]:
        """Of gemm_four_bit_wgmma.cu, by build and cluster."""
        found = {}
        for tile, cluster in wgmma_launches(self.product, len(x)):

            def wgmma(tile=tile, cluster=cluster):
                for w in self.own:
                    launch_wgmma(tile, self.product[2], x, w, out, 0, cluster)

            found[f"W{tile} c{cluster}"] = graph_us(wgmma, 5) / len(self.own)
        return found

    def stream_times(self, x, out) -> dict[str, float]:
        """Of gemm_four_bit.cu, by build, blocks an SM and parts of x."""
        found = {}
        for tile, per_sm, parts in launches(self.own[0].form, self.product, len(x)):

            def own(tile=tile, per_sm=per_sm, parts=parts):
                for w in self.own:
                    launch_gemm(tile, self.product[2], x, w, out, 0, SMS * per_sm, parts)

            found[f"{tile} /{per_sm} p{parts}"] = graph_us(own, 5) / len(self.own)
        return found


def dense() -> None:
    form = FORMS["bf16-128"]
    sums = {rows: dict.fromkeys(("stream", "wgmma", "widened", "bf16"), 0.0) for rows in ROWS}
    builds = [
        kernels(tile, form, epilogue, n, k)
        for n, k, epilogue in DENSE.values()
        for kernels, tiles in ((gemm_kernels, FOUR_BIT_TILES), (wgmma_kernels, WGMMA_TILES))
        for tile in tiles
        if epilogue != 2 or tile.tiles == 2
    ]
    compile_all(builds)
    for name, sizes in DENSE.items():
        product = Product(form, sizes)
        for rows in ROWS:
            times = product.times(rows)
            for way, total in sums[rows].items():
                total += min((t for key, t in times.items() if way_of(key) == way), default=9e9)
                sums[rows][way] = total
            us, best = min((t, key) for key, t in times.items() if key != "bf16")
            rate = len(product.own[0].packed) / us / 1e6
            shown = "  ".join(f"{key} {t:.1f}" for key, t in sorted(times.items(), key=by_time))
            print(f"{name:8s} {rows:4d} best {best} {rate:.2f} TB/s | {shown}", flush=True)
    for rows, ways in sums.items():
        shown = ", ".join(f"{way} {us * 32e-3:.3f}" for way, us in ways.items() if us < 1e9)
        print(f"32 layers, {rows:4d} rows, ms: {shown}")


def way_of(key: str) -> str:
    """Which kernel a key of `Product.times` is of."""
    return key if key in ("bf16", "widened") else "wgmma" if key[0] == "W" else "stream"


def by_time(item: tuple[str, float]) -> float:
    return item[1]


def experts() -> None:
    form, num, k, width, inner = FORMS["mxfp4"], 128, 4, 2880, 5760
    dims = {"num_experts": num, "experts_per_token": k, "gemm_n": inner, "gemm_k": width}
    old = [expert_kernels(tile, form, dims, False) for tile in EXPERT_TILES]
    new = [expert_wgmma_kernels(tile, form, dims, False) for tile in EXPERT_WGMMA_TILES]
    compile_all(old + new)
    w = noise(form, num * inner, width)
    for tokens in (1, 16, 64, 256, 2048):
        ids = torch.stack([torch.randperm(num)[:k] for _ in range(tokens)])
        sizes = (num + 1, tokens * k, tokens * k)
        places = [torch.zeros(size, dtype=torch.int32, device="cuda") for size in sizes]
        sorting = Kernels("moe", {"num_experts": num, "experts_per_token": k})
        flat = u32(ids.flatten())
        sorting.launch("moe_sort_u32_sm80", num, 256, flat, tokens * k, *places)
        x = torch.randn(tokens, width, device="cuda").bfloat16()
        out = torch.empty(tokens * k, inner, device="cuda", dtype=torch.bfloat16)
        nbytes = len(ids.unique()) / num * len(w.packed)
        for tile in EXPERT_WGMMA_TILES:
            arguments = (tile, None, x, w, num, k, out, *places[:2], 1, SMS)
            us = graph_us(lambda arguments=arguments: launch_expert_wgmma(*arguments), 5)
            rate = nbytes / us / 1e6
            print(f"experts {tokens:5d} W{tile} {us:9.1f} us {rate:.2f} TB/s", flush=True)
        for tile, per_sm in itertools.product(EXPERT_TILES, (1, 2)):
            arguments = (tile, None, x, w, num, k, out, *places[:2], 1, SMS * per_sm)
            if not launch_experts(*arguments):
                continue
            us = graph_us(lambda arguments=arguments: launch_experts(*arguments), 5)
            rate = nbytes / us / 1e6
            print(f"experts {tokens:5d} {tile} /{per_sm} {us:9.1f} us {rate:.2f} TB/s", flush=True)


if __name__ == "__main__":
    for section in sys.argv[1:] or ("dense", "experts"):
        {"dense": dense, "experts": experts}[section]()
