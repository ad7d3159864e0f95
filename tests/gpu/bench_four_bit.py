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
from builds import EXPERT_TILES, FOUR_BIT_TILES, FourBitTile
from device import Kernels, graph_us, u32
from four_bit import Form, Matrix, fixed_bytes, gemm_kernels, launch_gemm, widen
from test_four_bit_products import FORMS, expert_kernels, launch_experts

DENSE = {
    "qkv": (6144, 4096, 0),
    "o": (4096, 4096, 1),
    "gate_up": (28672, 4096, 2),
    "down": (4096, 14336, 1),
}
ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
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
        n, k, epilogue = self.product
        x = torch.randn(rows, k, device="cuda").bfloat16()
        out = torch.zeros(rows, n, device="cuda", dtype=torch.float32)

        def bf16():
            for w in self.plain:
                torch.mm(x, w.T)

        def widened():
            for w in self.own[:2]:
                widen(w, self.scratch)
                torch.mm(x, self.scratch.T)

        found = {"bf16": graph_us(bf16, 5) / len(self.plain)}
        if rows >= 64:
            found["widened"] = graph_us(widened, 5) / 2
        for tile, per_sm, parts in launches(self.own[0].form, self.product, rows):

            def own(tile=tile, per_sm=per_sm, parts=parts):
                for w in self.own:
                    launch_gemm(tile, epilogue, x, w, out, 0, SMS * per_sm, parts)

            found[f"{tile} /{per_sm} p{parts}"] = graph_us(own, 5) / len(self.own)
        return found


def dense() -> None:
    form, sums = FORMS["bf16-128"], {rows: [0.0, 0.0] for rows in ROWS}
    builds = [
        gemm_kernels(tile, form, epilogue, n, k)
        for n, k, epilogue in DENSE.values()
        for tile in FOUR_BIT_TILES
        if epilogue != 2 or tile.tiles == 2
    ]
    compile_all(builds)
    for name, sizes in DENSE.items():
        product = Product(form, sizes)
        for rows in ROWS:
            times = product.times(rows)
            us, best = min((t, key) for key, t in times.items() if key != "bf16")
            sums[rows][0] += us
            sums[rows][1] += times["bf16"]
            rate = len(product.own[0].packed) / us / 1e6
            shown = "  ".join(f"{key} {t:.1f}" for key, t in times.items())
            print(f"{name:8s} {rows:4d} best {best} {rate:.2f} TB/s | {shown}", flush=True)
    for rows, (own_us, bf16_us) in sums.items():
        own_ms, bf16_ms = own_us * 32e-3, bf16_us * 32e-3
        print(f"32 layers, {rows:4d} rows: 4-bit {own_ms:.3f} ms, bf16 {bf16_ms:.3f} ms")


def experts() -> None:
    form, num, k, width, inner = FORMS["mxfp4"], 128, 4, 2880, 5760
    dims = {"num_experts": num, "experts_per_token": k, "gemm_n": inner, "gemm_k": width}
    compile_all([expert_kernels(tile, form, dims, False) for tile in EXPERT_TILES])
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
