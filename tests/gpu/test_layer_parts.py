"""Experts with norms of their own, and what layers get of the token itself, against float64."""

import pytest
import torch
from device import Kernels, poison, relative_error, u32
from test_small import DTYPES, norm_blocks

EPS = 1e-6


def normed(x, weight):
    """RMS norm over the last dimension, float64."""
    scale = (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return x * scale * weight.double()


def vectors(count, size):
    return [torch.rand(size, device="cuda") + 0.5 for _ in range(count)]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 64), (3, 132), (5, 2816), (2, 5376)])
def test_three_norms_of_one_row_are_near_float64(rows, hidden, name, exact):
    dtype, flag, tolerance = DTYPES[name]
    x = torch.randn(rows, hidden, device="cuda") * 30
    weights = vectors(3, hidden)
    dims = {"hidden_size": hidden, "experts_per_token": 2}
    kernels = Kernels("expert_norms", dims, exact, ACT_DTYPE=flag)
    for block in norm_blocks(hidden):
        outs = [poison(rows, hidden, dtype=dtype) for _ in range(3)]
        kernels.launch(f"expert_inputs_{name}_sm80", rows, block, x, *weights, *outs, EPS)
        for weight, out in zip(weights, outs, strict=True):
            assert relative_error(out, normed(x.double(), weight)) < tolerance, block


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(
    ("rows", "hidden", "k"), [(1, 64, 2), (3, 132, 8), (5, 2816, 8), (2, 5376, 4)]
)
def test_experts_join_the_network_beside_them(rows, hidden, k, scaled, name, exact):
    dtype, flag, _ = DTYPES[name]
    shared = torch.randn(rows, hidden, device="cuda") * 5
    y = torch.randn(rows * k, hidden, device="cuda").to(dtype)
    place = torch.randperm(rows * k)
    weights = torch.rand(rows, k, device="cuda")
    norms = vectors(3, hidden)
    factor = torch.rand(1, device="cuda") + 0.5 if scaled else None
    before = torch.randn(rows, hidden, device="cuda")
    parts = y[place.cuda()].view(rows, k, hidden).double() * weights[..., None].double()
    joined = normed(shared.double(), norms[0]) + normed(parts.sum(1), norms[1])
    expected = (before.double() + normed(joined, norms[2])) * (float(factor) if scaled else 1.0)
    dims = {"hidden_size": hidden, "experts_per_token": k}
    kernels = Kernels("expert_norms", dims, exact, ACT_DTYPE=flag)
    for block in {*norm_blocks(hidden), 1024}:
        residual = before.clone()
        places = (u32(place.tolist()), weights)
        arguments = (shared, y, *places, *norms, residual, factor, EPS)
        kernels.launch(f"expert_join_{name}_sm80", rows, block, *arguments)
        assert relative_error(residual, expected) < 2e-6, block


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(("layers", "size"), [(1, 8), (5, 16), (9, 24), (42, 256), (3, 520)])
def test_what_layers_get_of_the_token(layers, size, name):
    dtype, flag, tolerance = DTYPES[name]
    rows, vocab = 7, 50
    x = torch.randn(rows, layers * size, device="cuda").to(dtype)
    table = torch.randn(vocab, layers * size, device="cuda").to(dtype)
    ids = torch.randint(0, vocab, (rows,)).tolist()
    (weight,) = vectors(1, size)
    projected, embedded = 0.02, size**0.5
    kernels = Kernels("token_input", {}, False, ACT_DTYPE=flag)
    own = table[ids].double().view(rows, layers, size) * embedded
    expected = normed(x.double().view(rows, layers, size) * projected, weight) + own
    expected *= 0.5**0.5
    arguments = (u32(ids), table, weight, layers, size, projected, embedded, EPS)
    grid = (rows, -(-layers // 8))
    kernels.launch(f"token_input_rows_{name}_sm80", grid, 256, x, *arguments)
    assert relative_error(x, expected.flatten(1)) < tolerance
    gate = torch.randn(rows, size, device="cuda").to(dtype)
    for kind in (0, 1):
        out = poison(rows, size, dtype=dtype)
        layer = layers - 1
        arguments = (gate, x, out, layers, layer, size, kind)
        kernels.launch(f"token_gate_rows_{name}_sm80", rows, 128, *arguments)
        wide = gate.double()
        act = (
            torch.nn.functional.gelu(wide, approximate="tanh")
            if kind
            else torch.nn.functional.silu(wide)
        )
        part = x.view(rows, layers, size)[:, layer].double()
        assert relative_error(out, act * part) < tolerance, kind
