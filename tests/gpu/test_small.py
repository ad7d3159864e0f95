"""Embedding, norms, gate and soft-cap against float64."""

import pytest
import torch
from device import Kernels, poison, relative_error, u32

DTYPES = {"bf16": (torch.bfloat16, 0, 3e-3), "f16": (torch.float16, 1, 4e-4)}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("hidden", [8, 576, 2040, 2048, 2056, 4096, 5120])
def test_embedding_is_exact(name, hidden, exact):
    dtype, flag, _ = DTYPES[name]
    table = torch.randn(300, hidden, device="cuda").to(dtype)
    kernels = Kernels(
        "embedding", {"vocab_size": 300, "hidden_size": hidden}, exact, ACT_DTYPE=flag
    )
    for rows in (1, 17, 512):
        ids = torch.randint(0, 300, (rows,)).tolist()
        out = poison(rows, hidden, dtype=torch.float32)
        kernels.launch(f"embedding_gather_{name}_sm80", rows, 256, u32(ids), table, out, 1.5)
        assert torch.equal(out, table[ids].float() * 1.5)


def norm_blocks(hidden):
    """The threads that norm_block in rust/cuda/src/forward.rs gives a row, for any rows."""
    return sorted({min(max(-(-hidden // 128) * 32, 32), most) for most in (256, 512, 1024)})


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(
    ("rows", "hidden"),
    [
        *[(5, 4), (1, 64), (3, 124), (2, 128), (3, 132), (5, 576), (2, 1020), (2, 1024), (3, 1028)],
        *[(2, 2044), (2, 2048), (2, 2052), (2, 4092), (33, 4096), (3, 4100), (3, 16384)],
    ],
)
def test_rms_norm_is_near_float64(name, rows, hidden, exact):
    dtype, flag, tolerance = DTYPES[name]
    x = torch.randn(rows, hidden, device="cuda") * (torch.rand(rows, 1, device="cuda") + 0.1) * 30
    weight, eps = torch.rand(hidden, device="cuda") + 0.5, 1e-5
    index = torch.randint(0, rows, (rows,))
    kernels = Kernels("rms_norm", {"hidden_size": hidden}, exact, ACT_DTYPE=flag)
    reference = (
        x.double() * (x.double().square().mean(1, keepdim=True) + eps).rsqrt() * weight.double()
    )
    bias = torch.randn(hidden, device="cuda")
    for block in norm_blocks(hidden):
        out = poison(rows, hidden, dtype=dtype)
        kernels.launch(f"rms_norm_rows_{name}_sm80", rows, block, x, None, weight, out, eps)
        assert relative_error(out, reference) < tolerance, block
        out = poison(rows, hidden, dtype=dtype)
        kernels.launch(f"rms_norm_rows_{name}_sm80", rows, block, x, u32(index), weight, out, eps)
        assert relative_error(out, reference[index]) < tolerance, block
        residual = torch.randn(rows, hidden, device="cuda")
        expected = residual.double() + reference
        kernels.launch(f"rms_norm_add_{name}_sm80", rows, block, x, weight, residual, eps)
        assert relative_error(residual, expected) < 2e-6, block
        for factor in (torch.rand(1, device="cuda") + 0.5, None):
            for copy in (poison(rows, hidden, dtype=dtype), None):
                residual = torch.randn(rows, hidden, device="cuda")
                expected = residual.double() + reference
                expected *= 1.0 if factor is None else float(factor)
                arguments = (x, weight, residual, factor, copy, eps)
                kernels.launch(f"norm_add_scaled_{name}_sm80", rows, block, *arguments)
                assert relative_error(residual, expected) < 2e-6, block
                assert copy is None or torch.equal(copy, residual.to(dtype)), block
        expected = residual + bias
        kernels.launch("bias_add_rows_f32_sm80", rows, block, residual, bias)
        assert torch.equal(residual, expected), block
        cast = poison(rows, hidden, dtype=dtype)
        kernels.launch(f"cast_rows_{name}_sm80", rows, block, residual, cast)
        assert torch.equal(cast, residual.to(dtype)), block


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 2040), (2, 2048), (3, 2056), (5, 14336)])
def test_gates_are_near_float64(name, rows, width, kind, bias, exact):
    dtype, flag, tolerance = DTYPES[name]
    x = (torch.randn(rows, 2 * width, device="cuda") * 4).to(dtype)
    b = torch.randn(2 * width, device="cuda") if bias else None
    full = x.double() + (b.double() if bias else 0)
    gate, up = full[:, :width], full[:, width:]
    gated = (
        torch.nn.functional.silu(gate)
        if kind == 0
        else torch.nn.functional.gelu(gate, approximate="tanh")
    )
    out = poison(rows, width, dtype=dtype)
    kernels = Kernels("activation", {"intermediate_size": width}, exact, ACT_DTYPE=flag)
    grid = (rows, (width + 2047) // 2048)
    kernels.launch(f"act_mul_rows_{name}_sm80", grid, 256, x, b, out, kind, 0.0)
    assert relative_error(out, gated * up) < tolerance


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_clamped_gate_is_near_float64_at_its_bounds(name, bias):
    (dtype, flag, tolerance), (rows, width, limit) = DTYPES[name], (3, 2056, 3.5)
    x = (torch.randn(rows, 2 * width, device="cuda") * 4).to(dtype)
    x[0, :8] = torch.tensor([-300.0, 300, -6e4, 6e4, 0, -88, 88, -0.0], device="cuda").to(dtype)
    b = torch.randn(2 * width, device="cuda") if bias else None
    full = x.double() + (b.double() if bias else 0)
    gate, up = full[:, :width].clamp(max=limit), full[:, width:].clamp(-limit, limit)
    out = poison(rows, width, dtype=dtype)
    defines = {"ACT_DTYPE": flag, "GATE_CLAMPED": 1}
    kernels = Kernels("activation", {"intermediate_size": width}, **defines)
    grid = (rows, (width + 2047) // 2048)
    kernels.launch(f"act_mul_rows_{name}_sm80", grid, 256, x, b, out, 0, limit)
    expected = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    assert relative_error(out, expected) < tolerance


def test_gate_of_huge_values_is_finite():
    x = torch.tensor(
        [[-300.0, 300, -1e4, 1e4, 0, -88, 88, -0.0] + [1.0] * 8], device="cuda"
    ).bfloat16()
    out = poison(1, 8, dtype=torch.bfloat16)
    Kernels("activation", {"intermediate_size": 8}).launch(
        "act_mul_rows_bf16_sm80", (1, 1), 256, x, None, out, 0, 0.0
    )
    assert relative_error(out, torch.nn.functional.silu(x[:, :8].double())) < 3e-3


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("vocab", [1, 255, 257, 4095, 4096, 4097, 5000, 8193])
def test_the_soft_cap_is_near_float64_and_keeps_what_is_not_finite(vocab, exact):
    x = torch.randn(3, vocab, device="cuda") * 60
    x[1, vocab // 2], x[2, vocab - 1] = float("nan"), float("inf")
    reference = 30 * torch.tanh(x.double() / 30)
    reference[2, vocab - 1] = float("inf")
    grid = (-(-vocab // 4096), 3)
    kernels = Kernels("softcap", {"vocab_size": vocab}, exact)
    kernels.launch("softcap_rows_f32_sm80", grid, 256, x, 30.0)
    good = torch.isfinite(reference)
    assert torch.equal(torch.isfinite(x), good)
    assert float((x.double() - reference)[good].abs().max()) < 1e-4
