"""Embedding, norms, gate and soft-cap against float64."""

import pytest
import torch
from device import Kernels, poison, relative_error, u32

DTYPES = {"bf16": (torch.bfloat16, 0, 3e-3), "f16": (torch.float16, 1, 4e-4)}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("hidden", [8, 576, 4096, 5120])
def test_embedding_is_exact(name, hidden, exact):
    dtype, flag, _ = DTYPES[name]
    table = torch.randn(300, hidden, device="cuda").to(dtype)
    ids = torch.randint(0, 300, (17,)).tolist()
    out = poison(17, hidden, dtype=torch.float32)
    kernels = Kernels(
        "embedding", {"vocab_size": 300, "hidden_size": hidden}, exact, DTYPE_F16=flag
    )
    kernels.launch(f"embedding_gather_{name}_sm80", 17, 256, u32(ids), table, out, 1.5)
    assert torch.equal(out, table[ids].float() * 1.5)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 64), (5, 576), (33, 4096), (3, 16384)])
def test_rms_norm(name, rows, hidden, exact):
    dtype, flag, tolerance = DTYPES[name]
    x = torch.randn(rows, hidden, device="cuda") * torch.rand(rows, 1, device="cuda") * 30
    weight, eps = torch.rand(hidden, device="cuda") + 0.5, 1e-5
    index = torch.randint(0, rows, (rows,))
    kernels = Kernels("rms_norm", {"hidden_size": hidden}, exact, DTYPE_F16=flag)
    reference = (
        x.double() * (x.double().square().mean(1, keepdim=True) + eps).rsqrt() * weight.double()
    )
    out = poison(rows, hidden, dtype=dtype)
    kernels.launch(f"rms_norm_rows_{name}_sm80", rows, 256, x, None, weight, out, eps)
    assert relative_error(out, reference) < tolerance
    out = poison(rows, hidden, dtype=dtype)
    kernels.launch(f"rms_norm_rows_{name}_sm80", rows, 512, x, u32(index), weight, out, eps)
    assert relative_error(out, reference[index]) < tolerance
    residual = torch.randn(rows, hidden, device="cuda")
    expected = residual.double() + reference
    kernels.launch(f"rms_norm_add_{name}_sm80", rows, 256, x, weight, residual, eps)
    assert relative_error(residual, expected) < 1e-6
    bias = torch.randn(hidden, device="cuda")
    expected = residual + bias
    kernels.launch("bias_add_rows_f32_sm80", rows, 256, residual, bias)
    assert torch.equal(residual, expected)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 2040), (2, 2048), (5, 14336)])
def test_gate(name, rows, width, kind, bias, exact):
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
    kernels = Kernels("activation", {"intermediate_size": width}, exact, DTYPE_F16=flag)
    grid = (rows, (width + 2047) // 2048)
    kernels.launch(f"act_mul_rows_{name}_sm80", grid, 256, x, b, out, kind)
    assert relative_error(out, gated * up) < tolerance


def test_gate_of_huge_values_is_finite():
    x = torch.tensor(
        [[-300.0, 300, -1e4, 1e4, 0, -88, 88, -0.0] + [1.0] * 8], device="cuda"
    ).bfloat16()
    out = poison(1, 8, dtype=torch.bfloat16)
    Kernels("activation", {"intermediate_size": 8}).launch(
        "act_mul_rows_bf16_sm80", (1, 1), 256, x, None, out, 0
    )
    assert relative_error(out, torch.nn.functional.silu(x[:, :8].double())) < 3e-3


def test_softcap():
    x = torch.randn(3, 5000, device="cuda") * 60
    x[1, 7], x[2, 9] = float("nan"), float("inf")
    reference = 30 * torch.tanh(x.double() / 30)
    reference[2, 9] = float("inf")
    Kernels("softcap", {"vocab_size": 5000}).launch("softcap_rows_f32_sm80", (2, 3), 256, x, 30.0)
    good = torch.isfinite(reference)
    assert torch.equal(torch.isfinite(x), good)
    assert float((x.double() - reference)[good].abs().max()) < 1e-4
