"""Every kernel compiles for every GPU we serve, without spills and without local memory.

Needs the package nvidia-cuda-nvrtc 13.0, no GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

from nvrtc import KERNELS, Compiled, compile_kernel, library_folder  # noqa: E402

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a")
DIMS = {
    "vocab_size": 128256, "sample_vocab": 128256, "hidden_size": 4096, "num_heads": 32,
    "num_kv_heads": 8, "rotary_dim": 128, "block_size": 64, "max_blocks": 2048, "num_slots": 288,
    "intermediate_size": 14336, "num_experts": 8, "experts_per_token": 2, "gemm_n": 4096,
    "gemm_k": 4096, "reserved0": 0, "reserved1": 0,
}  # fmt: skip
EXACT = {"CONST_DIMS": 1} | {f"D_{name}": value for name, value in DIMS.items()}
# What each file is built with; () for the files that need no macro.
VARIANTS = {
    "attention": [
        {"HEAD_DIM": d, "ATTN_STAGES": s}
        for d, s in ((32, 2), (64, 3), (96, 3), (128, 3), (256, 2))
    ],
    "rope_kv": [{"HEAD_DIM": d} for d in (32, 64, 96, 128, 256)],
    "gemm_stream": [
        {"GEMM_ROWS": r, "GEMM_EPI": e, "GEMM_X_SHARED": x, "GEMM_STAGES": 4, "GEMM_STEPS": 2}
        for r, e, x in ((8, 0, 1), (8, 1, 0), (16, 2, 1), (64, 3, 0))
    ],
}
FILES = sorted(path.stem for path in KERNELS.glob("*.cu"))


def check(name: str, arch: str, defines: dict[str, object]) -> Compiled:
    compiled = compile_kernel(name, arch, defines)
    assert compiled.entries, f"{name}.cu has no entry with {defines}"
    for entry, used in compiled.entries.items():
        assert used.spill == 0, f"{entry} spills {used.spill} bytes for {arch} with {defines}"
        assert used.stack == 0, f"{entry} has {used.stack} bytes of local memory for {arch}"
        assert used.registers <= 255
    return compiled


@pytest.mark.skipif(library_folder() is None, reason="nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("arch", ARCHS)
def test_kernel_compiles_without_spills(name: str, arch: str) -> None:
    variants = VARIANTS.get(name, [{}])
    if arch != "sm_90a":  # one build of each shape of code; sm_90a below has them all
        variants = variants[:: max(1, len(variants) - 1)]
    for variant in variants:
        check(name, arch, variant if arch != "sm_90a" else {**EXACT, **variant})
    if arch == "sm_90a":
        check(name, arch, {"DTYPE_F16": 1, **variants[0]})


def test_every_kernel_file_starts_with_its_contract() -> None:
    for name in FILES:
        lines = (KERNELS / f"{name}.cu").read_text().splitlines()
        assert lines[0].startswith("// "), name
        head = lines[: lines.index('#include "ptx.cuh"')]
        assert all(line.startswith("//") for line in head), name
        assert any("Launch" in line for line in head), f"{name}.cu does not say how it is launched"
        includes = [line for line in lines if line.startswith("#include")]
        assert includes == ['#include "ptx.cuh"'], f"{name}.cu may include ptx.cuh only"
