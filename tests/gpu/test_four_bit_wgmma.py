"""Products of many rows with 4-bit matrices on Hopper, against float64."""

import itertools

import pytest
import torch
from builds import EPILOGUES, EXPERT_WGMMA_TILES, WGMMA_TILES
from contract import FORMULAS
from device import Kernels, poison, relative_error, u32
from four_bit import launch_wgmma, random_matrix, wgmma_bytes
from test_four_bit_products import FORMS
from test_gemm import gated

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not HOPPER, reason="needs the instructions of capability 9.0")
# (n, k): one tile's part, odd rows and a part record of K, several tiles, long K.
SHAPES = [(64, 128), (96, 1152), (288, 2880), (1056, 1280), (512, 4096)]
BUILDS = [
    (name, tile, epilogue)
    for name in FORMS
    for tile in WGMMA_TILES
    for epilogue in (EPILOGUES if name == "bf16-128" else (0, 2, 3))
    if epilogue != 2 or tile.tiles == 2
]


def rounded(name, w):
    """The weights as the kernels see them: rounded to bf16 once."""
    return w.values.float().bfloat16().double()


@pytest.mark.parametrize(("name", "tile", "epilogue"), BUILDS, ids=str)
def test_products_are_near_float64(name, tile, epilogue):
    form = FORMS[name]
    # Rounding a product with an f16 scale to bf16 is not quite rounding once.
    slack = 4e-4 if form.scale == "f16" else 0.0
    for (n, k), cluster in zip(SHAPES, (1, 2, 4, 8, 8), strict=True):
        w = random_matrix(form, n, k)
        kind, width = int(n % 96 == 0), n // 2 if epilogue == 2 else n
        for rows in sorted({1, 3, tile.rows - 1, tile.rows, 2 * tile.rows + 5}):
            x = torch.randn(rows, k, device="cuda").bfloat16()
            y = x.double() @ rounded(name, w).T
            wide = epilogue in (1, 3)
            out = poison(rows, width, dtype=torch.float32 if wide else torch.bfloat16)
            if epilogue == 1:
                out = torch.randn(rows, width, device="cuda")
                y = y + out.double()
            blocks = 1 + rows % 5
            launch_wgmma(tile, epilogue, x, w, out, kind, cluster, blocks, exact=False)
            expected = gated(y, kind) if epilogue == 2 else y
            limit = 4e-6 * max(1, k / 1024) if wide else 4e-3
            assert relative_error(out, expected) < limit + slack, (n, k, rows, cluster)


@pytest.mark.parametrize("tile", WGMMA_TILES, ids=str)
@pytest.mark.parametrize("name", ["bf16-128", "mxfp4"])
def test_exact_builds_of_wide_matrices(name, tile):
    n, k = 1024, 14336
    w = random_matrix(FORMS[name], n, k)
    x = torch.randn(tile.rows + 3, k, device="cuda").bfloat16()
    expected = x.double() @ rounded(name, w).T
    for cluster in (1, 2, 4, 8):
        out = poison(len(x), n, dtype=torch.float32)
        launch_wgmma(tile, 3, x, w, out, 0, cluster)
        assert relative_error(out, expected) < 4e-5, cluster


@pytest.mark.parametrize("name", FORMS)
def test_a_rows_result_depends_on_neither_other_rows_nor_the_build(name):
    n, k = 512, 2048
    w = random_matrix(FORMS[name], n, k)
    x = torch.randn(128, k, device="cuda").bfloat16()
    for cluster in (1, 4):
        results = []
        for tile in WGMMA_TILES:
            for rows, blocks in [(1, 3), (5, 100), (tile.rows, 7)]:
                out = poison(rows, n, dtype=torch.float32)
                launch_wgmma(tile, 3, x[:rows].contiguous(), w, out, 0, cluster, blocks, False)
                results.append(out[0])
        assert all(torch.equal(results[0], other) for other in results), cluster


def test_repeated_products_are_the_same():
    w = random_matrix(FORMS["bf16-128"], 4096, 4096)
    x = torch.randn(128, 4096, device="cuda").bfloat16()
    for tile, cluster in itertools.product(WGMMA_TILES[-3:], (1, 8)):
        results = [poison(128, 4096, dtype=torch.float32) for _ in range(8)]
        for out in results:
            launch_wgmma(tile, 3, x, w, out, 0, cluster)
        assert all(torch.equal(results[0], other) for other in results[1:])


def expert_kernels(tile, form, dims, bias, exact=True):
    """One build of moe_four_bit_wgmma.cu."""
    defines = tile.defines() | form.defines() | {"MOE_BIAS": int(bias)}
    return Kernels("moe_four_bit_wgmma", dims, exact, **defines)


def launch_experts(tile, bias, x, w, experts, k, out, offset, sorted_, gather, blocks, exact=True):
    """moe_four_bit_wgmma for `experts` matrices below each other in `w`."""
    n = w.n // experts
    dims = {"num_experts": experts, "experts_per_token": k, "gemm_n": n, "gemm_k": w.k}
    expert_kernels(tile, w.form, dims, bias is not None, exact).launch(
        "moe_four_bit_wgmma_bf16_sm90",
        blocks,
        FORMULAS["four_bit_wgmma_threads"](tile.groups),
        *(x, w.packed, bias, out, offset, sorted_, gather),
        smem=wgmma_bytes(tile, w.form),
    )


@pytest.mark.parametrize("tile", EXPERT_WGMMA_TILES, ids=str)
@pytest.mark.parametrize("name", ["mxfp4", "bf16-128"])
@pytest.mark.parametrize(
    ("tokens", "experts", "k", "hidden", "width"),
    [(1, 4, 2, 128, 96), (9, 300, 4, 256, 64), (300, 16, 4, 640, 272)],
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
        launch_experts(tile, bias, x, w, experts, k, out, *places, exact=False)
        rows = x[order // k] if gather else x
        values = w.values.view(experts, width, hidden)[expert]
        expected = torch.einsum("nh,nwh->nw", rows.double(), values)
        if bias is not None:
            expected += bias[expert].double()
        assert relative_error(out, expected) < 4e-3, (gather, bias_too, blocks)
