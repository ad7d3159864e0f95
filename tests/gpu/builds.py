"""The builds of kernels that the engine makes, read from its sources: tests cannot fall behind.

Pure; needs no GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from contract import FORMULAS

SOURCES = Path(__file__).resolve().parents[2] / "rust" / "cuda" / "src"
EPILOGUES = (0, 1, 2, 3)


@dataclass(frozen=True)
class StreamTile:
    """One build of gemm_stream.cu: its macros, as rust/cuda/src/stream_tile.rs names them."""

    rows: int
    stages: int
    steps: int
    x_shared: bool

    def defines(self, epilogue: int) -> dict[str, object]:
        """What NVRTC gets."""
        return {
            "GEMM_ROWS": self.rows,
            "GEMM_EPI": epilogue,
            "GEMM_STAGES": self.stages,
            "GEMM_STEPS": self.steps,
            "GEMM_X_SHARED": int(self.x_shared),
        }

    def shared_bytes(self, k: int, epilogue: int) -> int:
        """Dynamic shared memory of a launch; the contract on top of gemm_stream.cu."""
        tiles = 2 if epilogue == 2 else 1
        x = self.rows * FORMULAS["stream_x_stride"](k) if self.x_shared else 0
        ring = FORMULAS["stream_ring_bytes"](self.stages, self.steps, tiles)
        return ring + FORMULAS["stream_sum_bytes"](self.rows, tiles) + x

    def __str__(self) -> str:
        return f"{self.rows}-{self.stages}x{self.steps}{'-x' * self.x_shared}"


@dataclass(frozen=True)
class FourBitTile:
    """One build of gemm_four_bit.cu or moe_four_bit.cu; see rust/cuda/src/four_bit_tile.rs."""

    rows: int
    tiles: int
    stages: int

    def defines(self) -> dict[str, object]:
        """What NVRTC gets."""
        return {"FB_ROWS": self.rows, "FB_TILES": self.tiles, "FB_STAGES": self.stages}

    def __str__(self) -> str:
        return f"{self.rows}-{self.tiles}x{self.stages}"


@dataclass(frozen=True)
class WgmmaTile:
    """One build of gemm_four_bit_wgmma.cu or moe_four_bit_wgmma.cu; see four_bit_wgmma.rs."""

    rows: int
    tiles: int
    groups: int

    @property
    def height(self) -> int:
        """Rows of the weight that a block takes at once."""
        return 64 * self.tiles * self.groups

    def defines(self) -> dict[str, object]:
        """What NVRTC gets."""
        return {"FW_ROWS": self.rows, "FW_TILES": self.tiles, "FW_GROUPS": self.groups}

    def __str__(self) -> str:
        return f"{self.rows}-{self.tiles}x{self.groups}"


def _wgmma_tiles(name: str) -> list[WgmmaTile]:
    text = (SOURCES / "four_bit_wgmma.rs").read_text()
    listed = re.findall(rf"const {name}: \[WgmmaTile; (\d+)\] = \[(.*?)\];", text, re.DOTALL)
    ((count, body),) = listed
    found = re.findall(r"WgmmaTile \{ rows: (\d+), tiles: (\d+), groups: (\d+) \}", body)
    assert len(found) == int(count), f"{len(found)} of {count} {name} read"
    return [WgmmaTile(*map(int, each)) for each in found]


def _four_bit_tiles(name: str) -> list[FourBitTile]:
    text = (SOURCES / "four_bit_tile.rs").read_text()
    listed = re.findall(rf"const {name}: \[FourBitTile; (\d+)\] = \[(.*?)\];", text, re.DOTALL)
    ((count, body),) = listed
    found = re.findall(r"FourBitTile \{ rows: (\d+), tiles: (\d+), stages: (\d+) \}", body)
    assert len(found) == int(count), f"{len(found)} of {count} {name} read"
    return [FourBitTile(*map(int, each)) for each in found]


def _stream_tiles() -> list[StreamTile]:
    text = (SOURCES / "stream_tile.rs").read_text()
    (count,) = re.findall(r"STREAM_TILES: \[StreamTile; (\d+)\]", text)
    found = re.findall(
        r"StreamTile \{ rows: (\d+), stages: (\d+), steps: (\d+), x_shared: (\w+) \}", text
    )
    assert len(found) == int(count), f"{len(found)} tiles read, {count} in stream_tile.rs"
    return [StreamTile(int(r), int(s), int(k), x == "true") for r, s, k, x in found]


def _head_dims() -> list[int]:
    text = (SOURCES / "builds.rs").read_text()
    (found,) = re.findall(r"const HEAD_DIMS: \[u32; \d+\] = \[([\d, ]+)\]", text)
    return [int(width) for width in found.split(",")]


def _prompt_head_dims() -> list[int]:
    text = (SOURCES / "prompt_launch.rs").read_text()
    (found,) = re.findall(r"const PROMPT_HEAD_DIMS: \[u32; \d+\] = \[([\d, ]+)\]", text)
    return [int(width) for width in found.split(",")]


def _width(name: str) -> int:
    text = (SOURCES / "builds.rs").read_text()
    (found,) = re.findall(rf"const {name}: u32 = (\d+)", text)
    return int(found)


def attention_stages(arch: str, head_dim: int) -> int:
    """As `stages` in rust/cuda/src/attention_launch.rs chooses them."""
    return 3 if arch.startswith("sm_90") and head_dim <= 128 else 2


STREAM_TILES = _stream_tiles()
FOUR_BIT_TILES = _four_bit_tiles("FOUR_BIT_TILES")
EXPERT_TILES = _four_bit_tiles("EXPERT_TILES")
WGMMA_TILES = _wgmma_tiles("WGMMA_TILES")
EXPERT_WGMMA_TILES = _wgmma_tiles("EXPERT_WGMMA_TILES")
HEAD_DIMS = _head_dims()
PROMPT_HEAD_DIMS = _prompt_head_dims()
SINK_HEAD_DIM = _width("SINK_HEAD_DIM")
WIDE_HEAD_DIM = _width("WIDE_HEAD_DIM")
CHUNK_HEAD_DIM = _width("CHUNK_HEAD_DIM")
