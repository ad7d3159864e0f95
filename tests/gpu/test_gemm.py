"""Skinny GEMM, and the steps of a mixture of experts, against float64."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from builds import EPILOGUES, STREAM_TILES, StreamTile
from device import Kernels, poison, relative_error, shared_bytes_limit, u32

DTYPES = {"bf16": (torch.bfloat16, 0, 4e-3), "f16": (torch.float16, 1, 6e-4)}
# Those that the engine tries, and the larger ones of the contract.
TILES = [*STREAM_TILES, StreamTile(32, 4, 2, True), StreamTile(64, 4, 2, False)]
HOPPER_SHARED_BYTES = 227 << 10
BUILDS = [
    (tile, epilogue)
    for tile in TILES
    for epilogue in EPILOGUES
    if tile.shared_bytes(8, epilogue) <= HOPPER_SHARED_BYTES
]
# (n, k): around what a block reads of K at once, 512 with 2 steps and 1024 with 4; then many times.
SHAPES = [(32, 8), (64, 504), (96, 520), (64, 576), (96, 1016), (64, 1032), (576, 1536)]
LARGE = [(96, 1024), (1024, 2056), (64, 14336)]


def gated(y, kind):
    gate, up = y.chunk(2, -1)
    approximate = {"approximate": "tanh"} if kind else {}
    return (torch.nn.functional.gelu if kind else torch.nn.functional.silu)(
        gate, **approximate
    ) * up


def kernels_of(name, tile, epilogue, shape, exact, e4m3=False):
    """One build, for these dimensions alone or for any."""
    dims, flag = dict(zip(("gemm_n", "gemm_k"), shape, strict=True)), DTYPES[name][1]
    defines = tile.defines(epilogue) | {"GEMM_WEIGHT_E4M3": int(e4m3)}
    return Kernels("gemm_stream", dims, exact, ACT_DTYPE=flag, **defines)


def launch_gemm(name, tile, epilogue, x, w, out, kind, exact=True, grid=1, scale=None):
    """gemm_stream with any grid."""
    n, k = w.shape
    kernels = kernels_of(name, tile, epilogue, (n, k), exact, scale is not None)
    smem = tile.shared_bytes(k, epilogue)
    grid = min(grid, n // 32 if epilogue == 2 else n // 16)
    arguments = (x, w, scale, out, len(x), kind)
    kernels.launch(f"gemm_stream_{name}_sm80", grid, 256, *arguments, smem=smem)


def check_gemm(name, tile, epilogue, shape, exact):
    """Some numbers of rows, each with another grid."""
    (dtype, _, tolerance), (n, k) = DTYPES[name], shape
    w = torch.randn(n, k, device="cuda").to(dtype)
    wide = w.double().T
    kind, width = int(n % 64 == 0), n // 2 if epilogue == 2 else n
    for rows in {1, 2, 7, 8, tile.rows // 2 + 1, tile.rows}:
        x = (torch.randn(rows, k, device="cuda") / k**0.5).to(dtype)
        y = x.double() @ wide
        out = poison(rows, width, dtype=torch.float32 if epilogue in (1, 3) else dtype)
        if epilogue == 1:
            out = torch.randn(rows, width, device="cuda")
            y = y + out.double()
        launch_gemm(name, tile, epilogue, x, w, out, kind, exact, 7 * rows)
        expected = gated(y, kind) if epilogue == 2 else y
        # Tensor cores drop what lies below an f32 sum's last bit, once every 128 elements of K.
        limit = 2e-6 * max(1, k / 2048) if epilogue in (1, 3) else tolerance
        assert relative_error(out, expected) < limit, (n, k, rows)


def shapes_of(tile, epilogue, exact):
    """That fit the card. A build for exact dimensions is one more compilation a shape."""
    most = shared_bytes_limit()
    shapes = LARGE if exact else SHAPES + LARGE
    return [shape for shape in shapes if tile.shared_bytes(shape[1], epilogue) <= most]


@pytest.fixture(scope="module")
def compiled(request):
    """All builds of the selected tests, on all cores: one by one they take half a minute."""
    # By its function: another file has a test of the same name.
    own = test_products_are_near_float64
    items = [item for item in request.session.items if getattr(item, "function", None) is own]
    builds = []
    for item in items:
        p = item.callspec.params
        for shape in shapes_of(p["tile"], p["epilogue"], p["exact"])[: None if p["exact"] else 1]:
            builds.append(kernels_of(p["name"], p["tile"], p["epilogue"], shape, p["exact"]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(Kernels.compile, builds))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("tile", "epilogue"), BUILDS, ids=lambda value: str(value))
@pytest.mark.parametrize("name", DTYPES)
def test_products_are_near_float64(compiled, name, tile, epilogue, exact):
    shapes = shapes_of(tile, epilogue, exact)
    if not shapes:
        pytest.skip(f"no shape fits this card's {shared_bytes_limit()} bytes of shared memory")
    for shape in shapes:
        check_gemm(name, tile, epilogue, shape, exact)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_gemm_rows_do_not_depend_on_each_other(tile):
    n, k = 256, 4096 if not tile.x_shared else 1024
    if tile.shared_bytes(k, 3) > shared_bytes_limit():
        pytest.skip("does not fit this card's shared memory")
    w = torch.randn(n, k, device="cuda").bfloat16()
    x = torch.randn(64, k, device="cuda").bfloat16()
    # Builds that cut K alike: with as many steps.
    others = [other for other in TILES if other.steps == tile.steps and not other.x_shared]
    results = []
    for build, rows in [(tile, 1), (tile, 5), (tile, tile.rows), *((o, o.rows) for o in others)]:
        if build.shared_bytes(k, 3) > shared_bytes_limit():
            continue
        out = poison(rows, n, dtype=torch.float32)
        part = x[:rows].contiguous()
        launch_gemm("bf16", build, 3, part, w, out, 0, exact=False, grid=3 + rows)
        results.append(out[0])
    assert all(torch.equal(results[0], other) for other in results)


def test_programmatic_launch_changes_nothing():
    """A chain in which each kernel reads what the one before wrote, started early or not."""
    n, rows, depth = 1024, 4, 12
    w = torch.randn(depth, n, n, device="cuda").bfloat16() / n**0.5
    first = torch.randn(rows, n, device="cuda").bfloat16()
    weight = torch.ones(n, device="cuda")
    dims = {"gemm_n": n, "gemm_k": n, "hidden_size": n}
    tile = StreamTile(8, 4, 2, True)
    smem = tile.shared_bytes(n, 3)
    gemm = Kernels("gemm_stream", dims, **tile.defines(3))
    norm = Kernels("rms_norm", dims)
    results = []
    for pdl in (False, True, True, True):
        x, y = first.clone(), poison(rows, n, dtype=torch.float32)
        for i in range(depth * 8):
            weights = w[i % depth]
            arguments = (x, weights, None, y, rows, 0)
            gemm.launch("gemm_stream_bf16_sm80", 50, 256, *arguments, smem=smem, pdl=pdl)
            norm.launch("rms_norm_rows_bf16_sm80", rows, 256, y, None, weight, x, 1e-6, pdl=pdl)
        results.append(x.clone())
    assert torch.isfinite(results[0]).all()
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("normalise", [0, 1])
@pytest.mark.parametrize(("E", "k"), [(4, 2), (8, 2), (60, 4), (128, 8), (512, 16)])
@pytest.mark.parametrize("tokens", [1, 3, 64, 333])
def test_moe_route_and_sort(tokens, E, k, normalise):
    logits = torch.randn(tokens, E, device="cuda")
    logits[0, : E // 2] = logits[0].max()  # ties: the lowest id first
    ids, weights = poison(tokens, k, dtype=torch.int32), poison(tokens, k, dtype=torch.float32)
    kernels = Kernels("moe", {"num_experts": E, "experts_per_token": k})
    arguments = (logits, None, None, ids, weights, normalise, 1.0, tokens)
    kernels.launch("moe_route_f32_sm80", -(-tokens // 4), 128, *arguments)
    p = logits.double().softmax(-1)
    order = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :k]
    assert torch.equal(ids.long(), order)
    expected = p.gather(1, order)
    if normalise:
        expected /= expected.sum(-1, keepdim=True)
    assert relative_error(weights, expected) < 1e-6
    n = tokens * k
    offset, sorted_, place = (poison(size, dtype=torch.int32) for size in (E + 1, n, n))
    kernels.launch("moe_sort_u32_sm80", E, 256, ids, n, offset, sorted_, place)
    flat = ids.flatten().long()
    assert torch.equal(sorted_.long(), torch.sort(flat, stable=True).indices)
    assert torch.equal(place[sorted_.long()].long(), torch.arange(n, device="cuda"))
    counts = torch.bincount(flat, minlength=E)
    assert torch.equal(offset.long(), torch.cat([counts.new_zeros(1), counts.cumsum(0)]))


@pytest.mark.parametrize("normalise", [0, 1])
@pytest.mark.parametrize("macro", ["MOE_BIAS", "MOE_SIGMOID"])
@pytest.mark.parametrize(("E", "k"), [(4, 2), (60, 4), (160, 8), (512, 16)])
def test_moe_route_with_bias_or_sigmoid(E, k, macro, normalise):
    tokens, factor = 77, 2.5
    logits, vector = torch.randn(tokens, E, device="cuda"), torch.randn(E, device="cuda")
    ids, weights = poison(tokens, k, dtype=torch.int32), poison(tokens, k, dtype=torch.float32)
    kernels = Kernels("moe", {"num_experts": E, "experts_per_token": k}, **{macro: 1})
    sigmoid = macro == "MOE_SIGMOID"
    vectors = (None, vector) if sigmoid else (vector, None)
    arguments = (logits, *vectors, ids, weights, normalise, factor, tokens)
    kernels.launch("moe_route_f32_sm80", -(-tokens // 4), 128, *arguments)
    if sigmoid:
        scores = logits.double().sigmoid()
        order = (scores + vector).topk(k).indices
    else:
        scores = (logits + vector).double().softmax(-1)
        order = scores.topk(k).indices
    assert torch.equal(ids.long(), order)
    expected = scores.gather(1, order)
    if normalise:
        expected /= expected.sum(-1, keepdim=True)
    assert relative_error(weights, expected * factor) < 1e-6


@pytest.mark.parametrize("normalise", [0, 1])
@pytest.mark.parametrize("macros", [{"MOE_SIGMOID": 2}, {"MOE_SCALES": 1}])
@pytest.mark.parametrize(("E", "k"), [(4, 1), (60, 4), (128, 8), (512, 16)])
def test_moe_route_by_logits_or_with_scales(E, k, macros, normalise):
    tokens, factor = 77, 2.5
    # So large that sigmoids are equal.
    logits, vector = torch.randn(tokens, E, device="cuda") * 30, torch.rand(E, device="cuda")
    ids, weights = poison(tokens, k, dtype=torch.int32), poison(tokens, k, dtype=torch.float32)
    kernels = Kernels("moe", {"num_experts": E, "experts_per_token": k}, **macros)
    scales = "MOE_SCALES" in macros
    correction = vector if scales else None
    arguments = (logits, None, correction, ids, weights, normalise, factor, tokens)
    kernels.launch("moe_route_f32_sm80", -(-tokens // 4), 128, *arguments)
    order = logits.topk(k).indices
    assert torch.equal(ids.long(), order)
    scores = logits.double().softmax(-1) if scales else logits.double().sigmoid()
    expected = scores.gather(1, order)
    if normalise:
        expected /= expected.sum(-1, keepdim=True)
    if scales:
        expected *= vector[order].double()
    assert float((weights - expected * factor).abs().max()) < 1e-5


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(("tokens", "E", "k", "hidden"), [(1, 4, 1, 64), (70, 16, 2, 5120)])
def test_rows_of_experts_are_scaled_once(tokens, E, k, hidden, name, exact):
    dtype, flag, tolerance = DTYPES[name]
    dims = {"num_experts": E, "experts_per_token": k, "hidden_size": hidden}
    n = tokens * k
    x = torch.randn(tokens, hidden, device="cuda").to(dtype)
    weights = torch.rand(n, device="cuda")
    order = torch.randperm(n)
    expected = x.double()[order.cuda() // k] * weights.double()[order.cuda()][:, None]
    out = poison(n, hidden, dtype=dtype)
    kernels = Kernels("moe", dims, exact, ACT_DTYPE=flag)
    kernels.launch(f"moe_scale_rows_{name}_sm80", n, 256, x, u32(order.tolist()), weights, out)
    assert relative_error(out, expected) < tolerance
    assert torch.equal(weights, torch.ones_like(weights))


@pytest.mark.parametrize("defines", [{}, {"MOE_BIAS": 1}, {"MOE_SIGMOID": 1}, {"MOE_SIGMOID": 2}])
def test_moe_route_survives_nan(defines):
    logits = torch.full((4, 8), float("nan"), device="cuda")
    zeros = torch.zeros(8, device="cuda")
    ids, weights = poison(4, 2, dtype=torch.int32), poison(4, 2, dtype=torch.float32)
    kernels = Kernels("moe", {"num_experts": 8, "experts_per_token": 2}, **defines)
    arguments = (logits, zeros, zeros, ids, weights, 1, 1.0, 4)
    kernels.launch("moe_route_f32_sm80", 1, 128, *arguments)
    assert int(ids.min()) >= 0
    assert int(ids.max()) < 8


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("bias", [0, 1])
@pytest.mark.parametrize(
    ("tokens", "E", "k", "hidden", "width"),
    [(1, 4, 2, 64, 40), (70, 8, 2, 136, 64), (300, 16, 4, 256, 200)],
)
def test_products_of_experts_are_near_float64(name, tokens, E, k, hidden, width, bias, exact):
    dtype, flag, tolerance = DTYPES[name]
    dims = {"num_experts": E, "experts_per_token": k, "hidden_size": hidden}
    n = tokens * k
    x = torch.randn(tokens, hidden, device="cuda").to(dtype)
    up = (torch.randn(E, 2 * width, hidden, device="cuda") / hidden**0.5).to(dtype)
    down = (torch.randn(E, hidden, width, device="cuda") / width**0.5).to(dtype)
    ids = torch.stack([torch.randperm(E)[:k] for _ in range(tokens)]).cuda()
    ids[:, 0] = torch.where(torch.arange(tokens, device="cuda") % 2 == 0, ids[:, 0], ids[0, 0])
    weights = torch.rand(tokens, k, device="cuda")
    offset, sorted_, place = (poison(size, dtype=torch.int32) for size in (E + 1, n, n))
    kernels = Kernels("moe", dims, exact, ACT_DTYPE=flag)
    kernels.launch("moe_sort_u32_sm80", E, 256, u32(ids.flatten().cpu()), n, offset, sorted_, place)
    hidden_out, gate, y = (poison(n, size, dtype=dtype) for size in (2 * width, width, hidden))
    biases = [torch.randn(weight.shape[:2], device="cuda") * bias for weight in (up, down)]
    for weight, b, source, target, gather in (
        (up, biases[0], x, hidden_out, 1),
        (down, biases[1], gate, y, 0),
    ):
        shape = {"gemm_n": weight.shape[1], "gemm_k": weight.shape[2]}
        gemm = Kernels("moe", dims | shape, exact, ACT_DTYPE=flag, MOE_BIAS=bias)
        if not gather:
            gate.copy_(gated(hidden_out.double(), 0))
        grid = (-(-weight.shape[1] // 64), -(-n // 64) + E)
        arguments = (source, weight, b if bias else None, target, offset, sorted_, gather)
        gemm.launch(f"moe_gemm_{name}_sm80", grid, 128, *arguments)
    order = sorted_.long()
    expert = ids.flatten()[order]
    reference = torch.einsum("nh,nwh->nw", x[order // k].double(), up[expert].double())
    reference += biases[0][expert].double()
    assert relative_error(hidden_out, reference) < tolerance
    reference = torch.einsum("nw,nhw->nh", gate.double(), down[expert].double())
    reference += biases[1][expert].double()
    assert relative_error(y, reference) < tolerance
    residual = torch.randn(tokens, hidden, device="cuda")
    parts = y[place.long()].view(tokens, k, hidden).double() * weights[..., None].double()
    expected = residual.double() + parts.sum(1)
    kernels.launch(f"moe_combine_{name}_sm80", tokens, 256, y, place, weights, residual)
    assert relative_error(residual, expected) < 1e-6
