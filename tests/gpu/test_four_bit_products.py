"""Products with 4-bit matrices, and their widening, against float64."""

import itertools

import pytest
import torch
from builds import EPILOGUES, EXPERT_TILES, FOUR_BIT_TILES
from device import Kernels, poison, relative_error, shared_bytes_limit, u32
from four_bit import (
    Form,
    fixed_bytes,
    launch_gemm,
    random_matrix,
    widen,
    x_bytes,
)
from test_gemm import gated

FORMS = {
    "bf16-128": Form("bf16", False, 128, 1),
    "f16-zeros-128": Form("f16", True, 128, 1),
    "f16-zeros-64": Form("f16", True, 64, 1),
    "bf16-32": Form("bf16", False, 64, 2),
    "mxfp4": Form("e8m0", False, 64, 2),
}
# (n, k, parts of x): less than a round of the eight warps, part rounds, many.
SHAPES = [(64, 128, 1), (96, 1152, 1), (160, 2880, 2), (512, 4096, 3)]
BUILDS = [
    (name, tile, epilogue)
    for name in FORMS
    for tile in FOUR_BIT_TILES
    for epilogue in (EPILOGUES if name == "bf16-128" else (0, 2))
    if (epilogue != 2 or tile.tiles == 2) and (tile.rows < 64 or name != "bf16-32")
]


@pytest.mark.parametrize(("name", "tile", "epilogue"), BUILDS, ids=str)
def test_products_are_near_float64(name, tile, epilogue):
    form, num_checked = FORMS[name], 0
    for n, k, parts in SHAPES:
        if n % (16 * tile.tiles):
            continue
        w = random_matrix(form, n, k)
        kind, width = int(n % 96 == 0), n // 2 if epilogue == 2 else n
        for rows in sorted({1, 3, tile.rows - 1, tile.rows, 2 * tile.rows + 5}):
            x = torch.randn(rows, k, device="cuda").bfloat16()
            y = x.double() @ w.values.T
            out = poison(
                rows, width, dtype=(torch.float32 if epilogue in (1, 3) else torch.bfloat16)
            )
            if epilogue == 1:
                out = torch.randn(rows, width, device="cuda")
                y = y + out.double()
            if not launch_gemm(tile, epilogue, x, w, out, kind, 1 + rows % 5, parts, exact=False):
                continue
            num_checked += 1
            expected = gated(y, kind) if epilogue == 2 else y
            limit = 4e-6 * max(1, k / 1024) if epilogue in (1, 3) else 4e-3
            assert relative_error(out, expected) < limit, (n, k, rows)
    assert num_checked > 0


@pytest.mark.parametrize("tile", FOUR_BIT_TILES[:4:3], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_exact_builds_of_wide_matrices(name, tile):
    n, k = 1024, 14336
    w = random_matrix(FORMS[name], n, k)
    x = torch.randn(tile.rows, k, device="cuda").bfloat16()
    out = poison(tile.rows, n, dtype=torch.float32)
    assert any(launch_gemm(tile, 3, x, w, out, 0, 132, parts) for parts in (1, 2, 4, 8, 16))
    assert relative_error(out, x.double() @ w.values.T) < 4e-5


@pytest.mark.parametrize("name", FORMS)
def test_a_rows_result_depends_on_neither_other_rows_nor_the_build(name):
    n, k = 256, 2048
    w = random_matrix(FORMS[name], n, k)
    x = torch.randn(64, k, device="cuda").bfloat16()
    results = []
    for tile in FOUR_BIT_TILES:
        for rows, blocks in [(1, 3), (5, 100), (tile.rows, 7)]:
            out = poison(rows, n, dtype=torch.float32)
            if launch_gemm(tile, 3, x[:rows].contiguous(), w, out, 0, blocks, exact=False):
                results.append(out[0])
    assert len(results) > 6
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("name", FORMS)
def test_widened_matrices_are_rounded_once(name):
    for n, k in [(16, 128), (48, 1152), (4096, 4096), (64, 72 if FORMS[name].block == 64 else 256)]:
        w = random_matrix(FORMS[name], n, k)
        out = poison(n, k, dtype=torch.bfloat16)
        widen(w, out)
        assert torch.equal(out, w.values.float().bfloat16()), (n, k)


def expert_kernels(tile, form, dims, bias, exact=True):
    """One build of moe_four_bit.cu."""
    defines = tile.defines() | form.defines() | {"MOE_BIAS": int(bias)}
    return Kernels("moe_four_bit", dims, exact, **defines)


def launch_experts(tile, bias, x, w, experts, k, out, offset, sorted_, gather, blocks, exact=True):
    """moe_four_bit for `experts` matrices below each other in `w`; False if it does not fit."""
    form, n = w.form, w.n // experts
    columns = form.records(w.k) * form.block
    smem = fixed_bytes(tile, form) + x_bytes(tile.rows, columns)
    if n % (16 * tile.tiles) or smem + 2304 > shared_bytes_limit():
        return False
    dims = {"num_experts": experts, "experts_per_token": k, "gemm_n": n, "gemm_k": w.k}
    kernels = expert_kernels(tile, form, dims, bias is not None, exact)
    arguments = (x, w.packed, bias, out, offset, sorted_, gather)
    kernels.launch("moe_four_bit_bf16_sm80", blocks, 256, *arguments, smem=smem)
    return True


@pytest.mark.parametrize("tile", EXPERT_TILES, ids=str)
@pytest.mark.parametrize("name", ["mxfp4", "bf16-128"])
@pytest.mark.parametrize(
    ("tokens", "experts", "k", "hidden", "width"),
    [(1, 4, 2, 128, 96), (9, 300, 4, 256, 64), (300, 16, 4, 640, 128)],
)
def test_products_of_experts_are_near_float64(name, tile, tokens, experts, k, hidden, width):
    form, entries = FORMS[name], tokens * k
    ids = torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)])
    ids[:, 0] = torch.where(torch.arange(tokens) % 2 == 0, ids[:, 0], ids[0, 0])
    offset, sorted_, place = (poison(s, dtype=torch.int32) for s in (experts + 1, entries, entries))
    sorting = Kernels("moe", {"num_experts": experts, "experts_per_token": k})
    flat = u32(ids.flatten())
    sorting.launch("moe_sort_u32_sm80", experts, 256, flat, entries, offset, sorted_, place)
    order = sorted_.long()
    expert = flat.long()[order]
    for gather, bias_too, blocks in itertools.product((1, 0), (False, True), (3, 500)):
        w = random_matrix(form, experts * width, hidden)
        bias = torch.randn(experts, width, device="cuda") if bias_too else None
        x = torch.randn(tokens if gather else entries, hidden, device="cuda").bfloat16()
        out = poison(entries, width, dtype=torch.bfloat16)
        places = (offset, sorted_, gather, blocks)
        if not launch_experts(tile, bias, x, w, experts, k, out, *places, exact=False):
            pytest.skip("does not fit")
        rows = x[order // k] if gather else x
        values = w.values.view(experts, width, hidden)[expert]
        expected = torch.einsum("nh,nwh->nw", rows.double(), values)
        if bias is not None:
            expected += bias[expert].double()
        assert relative_error(out, expected) < 4e-3, (gather, bias_too, blocks)
