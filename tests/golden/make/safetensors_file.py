"""Safetensors files with numpy alone, bf16 included. Plain data; reads a whole file."""

import json
from pathlib import Path

import numpy as np

TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
    "F8_E4M3": np.uint8,
}


def bf16(values: np.ndarray) -> np.ndarray:
    """The bits of each value as bf16, rounded to nearest even; uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits: np.ndarray) -> np.ndarray:
    """bf16 bits as f32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read(path: Path) -> dict[str, np.ndarray]:
    """All tensors; bf16 comes as f32."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[8 + size + begin : 8 + size + end], TYPES[entry["dtype"]])
        values = widened(raw) if entry["dtype"] == "BF16" else raw
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def write(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """Writes tensors given as type and values; BF16 takes any floats and rounds them."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    chunks, at = [], 0
    for name, (kind, values) in sorted(tensors.items()):
        stored = bf16(values) if kind == "BF16" else values.astype(TYPES[kind])
        chunk = np.ascontiguousarray(stored).tobytes()
        offsets = [at, at + len(chunk)]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": offsets}
        chunks.append(chunk)
        at += len(chunk)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))
