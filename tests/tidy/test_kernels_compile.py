"""Every kernel compiles for every GPU we serve, without spills and without local memory.

Needs the package nvidia-cuda-nvrtc 13.0, no GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import nvrtc  # noqa: E402
from builds import (  # noqa: E402
    CHUNK_HEAD_DIM,
    EPILOGUES,
    EXPERT_TILES,
    EXPERT_WGMMA_TILES,
    FOUR_BIT_TILES,
    HEAD_DIMS,
    PROMPT_HEAD_DIMS,
    SINK_HEAD_DIM,
    STREAM_TILES,
    WGMMA_TILES,
    WIDE_HEAD_DIM,
    attention_stages,
)
from contract import DIM_FIELDS  # noqa: E402
from nvrtc import (  # noqa: E402
    KERNELS,
    CompileError,
    Resources,
    compile_kernel,
    library_folder,
)

# Compiling all takes minutes on two cores.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ingle/test-kernels"
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a")
# The others of sm_80's generation differ from it in the order of instructions alone: f16 there too
# would double the time.
F16_ARCHS = ("sm_80", "sm_90a")
E4M3_ARCHS = ("sm_89", "sm_90a")
DIMS = {
    "vocab_size": 128256, "sample_vocab": 128256, "hidden_size": 4096, "num_heads": 32,
    "num_kv_heads": 8, "rotary_dim": 128, "block_size": 64, "max_blocks": 2048, "num_slots": 288,
    "intermediate_size": 14336, "num_experts": 8, "experts_per_token": 2, "gemm_n": 4096,
    "gemm_k": 4096,
}  # fmt: skip
EXACT = {"CONST_DIMS": 1} | {f"D_{name}": DIMS.get(name, 0) for name in DIM_FIELDS}
# Groups of 128 columns; of 32 with zeros; MXFP4.
FOUR_BIT_FORMS: list[dict[str, object]] = [
    {"FB_BLOCK": 128, "FB_GROUPS": 1},
    {"FB_BLOCK": 64, "FB_GROUPS": 2, "FB_SCALE": 0, "FB_ZEROS": 1},
    {"FB_BLOCK": 64, "FB_GROUPS": 2, "FB_SCALE": 2, "FB_CODES": 1},
]
FOUR_BIT = {
    "widen_four_bit": FOUR_BIT_FORMS,
    # Those with most registers. As in rust/cuda, 64 rows do not go with two groups of integers.
    "gemm_four_bit": [
        tile.defines() | form | {"GEMM_EPI": 2 if tile.tiles == 2 else 1}
        for form in FOUR_BIT_FORMS
        for tile in FOUR_BIT_TILES
        if tile.rows >= 16 and (tile.rows < 64 or "FB_ZEROS" not in form)
    ],
    "moe_four_bit": [
        tile.defines() | form | {"MOE_BIAS": 1}
        for tile in EXPERT_TILES
        for form in FOUR_BIT_FORMS[::2]
        if tile.rows >= 16
    ],
    "gemm_four_bit_wgmma": [
        tile.defines() | form | {"GEMM_EPI": 2 if tile.tiles == 2 else 1}
        for form in FOUR_BIT_FORMS
        for tile in WGMMA_TILES
    ],
    "moe_four_bit_wgmma": [
        tile.defines() | form | {"MOE_BIAS": 1}
        for tile in EXPERT_WGMMA_TILES
        for form in FOUR_BIT_FORMS[2:]
    ],
}
RULES: dict[str, list[dict[str, object]]] = {
    "activation": [{}, {"GATE_CLAMPED": 1}],
    "moe": [{}, {"MOE_BIAS": 1}, {"MOE_SIGMOID": 1}, {"MOE_SIGMOID": 2}, {"MOE_SCALES": 1}],
    "step_prepare": [{}, {"PLAN_KINDS": 1}],
}
# Registers a thread at the start, by groups of warps, where groups pass registers to each other.
# With fewer one would wait forever.
START_REGISTERS = {3: 168, 5: 96}
FILES = sorted(path.stem for path in KERNELS.glob("*.cu"))

Build = tuple[str, str, dict[str, object]]


def variants(name: str, arch: str) -> list[dict[str, object]]:
    """What the engine builds a file with on a card, dimensions and number format aside."""
    own = [{"HEAD_DIM": SINK_HEAD_DIM, "SINKS": 1}, {"HEAD_DIM": CHUNK_HEAD_DIM, "CHUNKS": 1}]
    if name == "attention":
        heads = [{"HEAD_DIM": d} for d in [*HEAD_DIMS, WIDE_HEAD_DIM]] + own
        return [head | {"ATTN_STAGES": attention_stages(arch, head["HEAD_DIM"])} for head in heads]
    if name == "attention_prefill":
        return [*({"HEAD_DIM": d} for d in PROMPT_HEAD_DIMS), *own] if arch == "sm_90a" else []
    if name in RULES:
        return RULES[name]
    if name == "quantise" and arch not in E4M3_ARCHS:
        return []
    if name in ("delta_net", "delta_chunks"):
        sizes = [(128, 128), (32, 64), (256, 256)]
        return [{"KEY_DIM": key, "VALUE_DIM": value} for key, value in sizes]
    if name == "rope_kv":
        return ropes()
    if name in FOUR_BIT:
        return FOUR_BIT[name] if arch == "sm_90a" or not name.endswith("_wgmma") else []
    if name == "gemm_stream":
        builds = [tile.defines(epilogue) for tile in STREAM_TILES for epilogue in EPILOGUES]
        e4m3 = [build | {"GEMM_WEIGHT_E4M3": 1} for build in builds]
        return builds + (e4m3 if arch in E4M3_ARCHS else [])
    return [{}]


def ropes() -> list[dict[str, object]]:
    """Those of rope_kv.cu."""
    kinds = [{}, {"FULL_NORM": 1}, {"QUERY_SCALE": 1}, {"OUTPUT_GATE": 1}]
    # Gemma 4: layers with a window and without, values that are keys, keys of other layers.
    values, keys, queries = {"VALUE_NORM": 1}, {"KEY_PARTS": 1}, {"KEY_PARTS": 0}
    window = [{"HEAD_DIM": 256} | kind for kind in (values, queries)]
    full = [
        {"HEAD_DIM": WIDE_HEAD_DIM, "ROTARY_PART": 1} | kind
        for kind in (values, values | keys, queries)
    ]
    chunks = [{"HEAD_DIM": CHUNK_HEAD_DIM, "UNWEIGHTED_NORM": 1, "QUERY_SCALE": 2}]
    plain = [{"HEAD_DIM": d} | kind for d in HEAD_DIMS for kind in kinds]
    return plain + window + full + chunks


def builds(name: str, arch: str) -> Iterator[Build]:
    """A file's builds in the wheel and, for sm_90a, where they are measured, those of one model."""
    text = (KERNELS / f"{name}.cu").read_text()
    has_formats = name not in FOUR_BIT and ("\nENTRY(" in text or ", DT, sm90)" in text)
    for variant in variants(name, arch):
        yield name, arch, variant
        # Matrices of e4m3 numbers go with bf16 alone.
        is_e4m3 = name == "quantise" or variant.get("GEMM_WEIGHT_E4M3")
        if has_formats and arch in F16_ARCHS and not is_e4m3:
            yield name, arch, {"ACT_DTYPE": 1, **variant}
        is_own = variant.keys() & {"SINKS", "CHUNKS"} or variant.get("HEAD_DIM") not in HEAD_DIMS
        if name == "attention" and arch in F16_ARCHS and not is_own:
            yield name, arch, {"CAUSAL": 0, **variant}
        if arch == "sm_90a" and (name != "rope_kv" or variant["HEAD_DIM"] >= 128):
            yield name, arch, {**EXACT, **variant}


def entries_of(name: str, arch: str, defines: dict[str, object]) -> dict[str, Resources]:
    """What ptxas says of a build's entries; kept on disk by everything that the build is made of.

    Raises CompileError.
    """
    folder = library_folder()
    assert folder is not None
    parts = [path.read_bytes() for path in (KERNELS / f"{name}.cu", *sorted(KERNELS.glob("*.cuh")))]
    compilers = sorted((p.name, p.stat().st_size) for p in folder.glob("libnvrtc*"))
    parts += [repr((name, arch, sorted(defines.items()), compilers)).encode()]
    parts += [Path(nvrtc.__file__).read_bytes()]
    kept = CACHE / hashlib.sha256(b"\0".join(parts)).hexdigest()
    if kept.exists():
        found = json.loads(kept.read_text())
        return {entry: Resources(**used) for entry, used in found.items()}
    entries = compile_kernel(name, arch, defines).entries
    CACHE.mkdir(parents=True, exist_ok=True)
    half_written = kept.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    half_written.write_text(json.dumps({entry: asdict(used) for entry, used in entries.items()}))
    half_written.replace(kept)
    return entries


def faults(build: Build) -> list[str]:
    """What is wrong with one build, a line each."""
    name, arch, defines = build
    macros = {key: value for key, value in defines.items() if not key.startswith("D_")}
    shown = f"{name}.cu for {arch} with {macros}"
    try:
        entries = entries_of(name, arch, defines)
    except CompileError as error:
        return [str(error)]
    if not entries:
        return [f"{shown}: no entry"]
    passes = name == "attention_prefill" or name.endswith("_wgmma")
    start = START_REGISTERS[1 + int(str(defines.get("FW_GROUPS", 2)))]
    wrong = [
        f"{shown}: {entry} starts with {used.registers} registers a thread, counts on {start}"
        for entry, used in entries.items()
        if passes and used.registers != start
    ] + [
        f"{shown}: {entry} waits for each wgmma"
        for entry, used in entries.items()
        if used.serialised
    ]
    return wrong + [
        f"{shown}: {entry} spills {used.spill} bytes, has {used.stack} bytes of local memory"
        for entry, used in entries.items()
        if used.spill > 0 or used.stack > 0
    ]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", FILES)
def test_every_kernel_compiles_without_spills(name: str, arch: str) -> None:
    if library_folder() is None:
        # The dev requirements have it for this machine, so its absence is a fault of the set-up.
        if platform.machine() == "x86_64":
            pytest.fail("nvidia-cuda-nvrtc is not installed: requirements/dev.txt names it")
        pytest.skip("nvidia-cuda-nvrtc has no package for this machine")
    todo = list(builds(name, arch))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [line for lines in pool.map(faults, todo) for line in lines]
    assert not found, "\n".join(found)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs NVRTC, as above")
def test_a_spill_is_seen() -> None:
    """What the test above rests on: the report of ptxas is read."""
    compiled = compile_kernel("rope_kv", "sm_80", {"HEAD_DIM": 256}, ["--maxrregcount=16"])
    used = compiled.entries["rope_kv_paged_bf16_sm80"]
    assert used.spill > 0
    assert used.stack > 0


def test_every_kernel_file_starts_with_its_contract() -> None:
    for name in FILES:
        lines = (KERNELS / f"{name}.cu").read_text().splitlines()
        assert lines[0].startswith("// "), name
        includes = [line for line in lines if line.startswith("#include")]
        # The other headers include the first.
        headers = ("ptx", "attention_plan", "delta_net", "expert_tiles", "four_bit")
        headers += ("four_bit_stream", "four_bit_wgmma")
        known = {f'#include "{header}.cuh"' for header in headers}
        assert includes, f"{name}.cu includes nothing"
        assert set(includes) <= known, f"{name}.cu includes {includes}"
        head = lines[: lines.index(includes[0])]
        assert all(line.startswith("//") for line in head), name
        assert any("Launch" in line for line in head), f"{name}.cu does not say how it is launched"
