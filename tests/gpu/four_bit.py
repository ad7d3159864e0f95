"""4-bit matrices as kernels/four_bit.cuh has them: forms, packing, launches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from builds import FourBitTile, WgmmaTile
from contract import CONSTANTS, FORMULAS
from device import Kernels, shared_bytes_limit

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@dataclass(frozen=True)
class Form:
    """FourBitForm of rust/cuda/src/four_bit.rs; `scale` is f16, bf16 or e8m0."""

    scale: str
    zeros: bool
    block: int
    groups: int

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.block // self.groups

    @property
    def record_bytes(self) -> int:
        """Of 16 rows and `block` columns."""
        scale_bytes = 1 if self.scale == "e8m0" else 2
        return self.block * 8 + self.groups * 16 * (scale_bytes + self.zeros)

    def records(self, k: int) -> int:
        """Of 16 rows of `k` columns."""
        return -(-k // self.block)

    def defines(self) -> dict[str, object]:
        """What NVRTC gets."""
        kind = self.scale.upper()
        return {
            "FB_CODES": CONSTANTS["FB_E2M1" if kind == "E8M0" else "FB_INT4"],
            "FB_SCALE": CONSTANTS[f"FB_SCALE_{kind}"],
            "FB_ZEROS": int(self.zeros),
            "FB_BLOCK": self.block,
            "FB_GROUPS": self.groups,
        }


@dataclass(frozen=True)
class Matrix:
    """A random matrix `[n, k]`: its records, and the numbers that they stand for in float64."""

    form: Form
    n: int
    k: int
    packed: torch.Tensor
    values: torch.Tensor


def random_matrix(form: Form, n: int, k: int) -> Matrix:
    """Codes, zeros and scales of all kinds; values of about 1 / sqrt(k)."""
    padded = form.records(k) * form.block
    num_groups = padded // form.group
    codes = torch.randint(0, 16, (n, padded), device="cuda")
    if form.scale == "e8m0":
        numbers = torch.tensor(E2M1 + [-x for x in E2M1], device="cuda", dtype=torch.float64)
        exponents = torch.randint(-3, 2, (n, num_groups), device="cuda")
        exponents -= round(torch.tensor(float(k)).log2().item() / 2)
        scales, stored = 2.0 ** exponents.double(), (exponents + 127).to(torch.uint8)
        values = numbers[codes]
        zeros = None
    else:
        dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[form.scale]
        stored = ((torch.rand(n, num_groups, device="cuda") + 0.1) / (4 * k**0.5)).to(dtype)
        stored[::3, ::2] *= -1
        scales = stored.double()
        zeros = torch.randint(0, 17, (n, num_groups), device="cuda") if form.zeros else None
        shift = zeros if form.zeros else torch.full((n, num_groups), 8, device="cuda")
        values = codes.double() - shift.double().repeat_interleave(form.group, 1)
    values = (values * scales.repeat_interleave(form.group, 1))[:, :k].contiguous()
    return Matrix(form, n, k, pack(form, codes, stored, zeros), values)


def pack(form: Form, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None):
    """Records, as bytes, of codes `[n, padded k]`, scales and zeros `[n, groups]`."""
    n, columns = codes.shape
    records = columns // form.block
    # Row: group of 16, half, g. Column: tile, step, half of a step, t, parity.
    parts = codes.view(n // 16, 2, 8, columns // 64, 4, 2, 4, 2).permute(0, 3, 2, 6, 4, 5, 1, 7)
    register = torch.arange(4, device="cuda").view(2, 2, 1)
    upper = 16 * torch.arange(2, device="cuda")
    if form.scale == "e8m0":
        spread = torch.stack([_spread(parts, i) for i in range(4)], -1)
        chosen = spread.gather(-1, register.expand(parts.shape)[..., None])[..., 0]
    else:
        chosen = parts << 4 * register
    words = (chosen << upper).sum((-3, -2, -1))
    words = words.reshape(n // 16, records, form.block * 2)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    sides = []
    for stored in (scales, zeros.to(torch.uint8) if zeros is not None else None):
        if stored is None:
            continue
        rows = stored.view(n // 16, 2, 8, records, form.groups).permute(0, 3, 4, 2, 1).contiguous()
        sides.append(rows.view(n // 16, records, form.groups, 16).view(torch.uint8))
    side = torch.cat(sides, -1).flatten(2)
    packed = torch.cat([words.contiguous().view(torch.uint8), side], -1)
    assert packed.shape[-1] == form.record_bytes
    return packed.contiguous()


def _spread(codes: torch.Tensor, register: int) -> torch.Tensor:
    sign, rest = codes >> 3, codes & 7
    if register == 3:
        return sign << 14 | (rest & 4) << 11 | (rest & 3) << 10
    return (sign << 15 | rest << 6) >> 3 * register


def fixed_bytes(tile: FourBitTile, form: Form) -> int:
    """Shared memory of a block beside x."""
    fixed = FORMULAS["four_bit_fixed_bytes"]
    return fixed(tile.stages, tile.rows, tile.tiles, form.record_bytes)


def x_bytes(rows: int, columns: int) -> int:
    """Shared memory of rows of x."""
    return rows * FORMULAS["four_bit_x_stride"](columns)


def gemm_kernels(tile: FourBitTile, form: Form, epilogue: int, n: int, k: int, exact: bool = True):
    """One build of gemm_four_bit.cu."""
    defines = tile.defines() | form.defines() | {"GEMM_EPI": epilogue}
    return Kernels("gemm_four_bit", {"gemm_n": n, "gemm_k": k}, exact, **defines)


def launch_gemm(tile, epilogue, x, w: Matrix, out, kind=0, blocks=1 << 30, parts=1, exact=True):
    """gemm_four_bit, at most `blocks` blocks, x in `parts` parts; False if it does not fit."""
    kernels, form = gemm_kernels(tile, w.form, epilogue, w.n, w.k, exact), w.form
    items, rows = w.n // (16 * tile.tiles), len(x)
    grid = min(items, blocks)
    columns = -(-form.records(w.k) // parts) * form.block
    kept = -(-items // grid) * FORMULAS["four_bit_kept_bytes"](tile.rows, tile.tiles)
    smem = fixed_bytes(tile, form) + x_bytes(min(rows, tile.rows), columns)
    smem += kept if columns < w.k else 0
    if smem > shared_bytes_limit():
        return False
    arguments = (x, w.packed, out, rows, kind, columns)
    grid = (grid, -(-rows // tile.rows))
    kernels.launch("gemm_four_bit_bf16_sm80", grid, 256, *arguments, smem=smem)
    return True


def wgmma_kernels(tile: WgmmaTile, form: Form, epilogue: int, n: int, k: int, exact: bool = True):
    """One build of gemm_four_bit_wgmma.cu."""
    defines = tile.defines() | form.defines() | {"GEMM_EPI": epilogue}
    return Kernels("gemm_four_bit_wgmma", {"gemm_n": n, "gemm_k": k}, exact, **defines)


def wgmma_bytes(tile: WgmmaTile, form: Form) -> int:
    """Dynamic shared memory of a block."""
    stage = FORMULAS["four_bit_wgmma_stage_bytes"](
        tile.rows, tile.tiles, tile.groups, form.block, form.record_bytes
    )
    return FORMULAS["four_bit_wgmma_bytes"](tile.groups, stage)


def launch_wgmma(tile, epilogue, x, w: Matrix, out, kind=0, cluster=1, blocks=132, exact=True):
    """gemm_four_bit_wgmma, at most `blocks` blocks where a cluster is one."""
    kernels = wgmma_kernels(tile, w.form, epilogue, w.n, w.k, exact)
    tiles = -(-w.n // tile.height) * -(-len(x) // tile.rows)
    kernels.launch(
        "gemm_four_bit_wgmma_bf16_sm90",
        min(tiles, blocks) if cluster == 1 else tiles * cluster,
        FORMULAS["four_bit_wgmma_threads"](tile.groups),
        *(x, w.packed, out, len(x), kind),
        smem=wgmma_bytes(tile, w.form),
        cluster=cluster,
    )


def widen(w: Matrix, out: torch.Tensor) -> None:
    """widen_four_bit."""
    kernels = Kernels("widen_four_bit", {"gemm_n": w.n, "gemm_k": w.k}, **w.form.defines())
    grid = -(-w.n // 16 * w.form.records(w.k) // 8)
    kernels.launch("widen_four_bit_bf16_sm80", grid, 256, w.packed, out)
