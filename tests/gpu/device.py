"""Loads compiled kernels and launches them on torch memory, on torch's current stream."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from contract import DIM_FIELDS
from nvrtc import compile_kernel


@dataclass(frozen=True)
class U64:
    """A scalar argument of 64 bits; plain ints are passed as u32."""

    value: int


class TensorMap(ctypes.Structure):
    """CUtensorMap, passed by value; lies at a multiple of 64 bytes."""

    _fields_ = (("opaque", ctypes.c_uint64 * 16),)


def tensor_map(address: int, sizes, strides, box, f16: bool) -> TensorMap:
    """A view of device memory in 2-byte elements, as rust/cuda's prompt_attention.rs makes it.

    `sizes` and `box` are in elements, innermost first; `strides` in bytes, without the innermost.
    """
    raw = (ctypes.c_uint8 * 192)()
    made = TensorMap.from_address(-(-ctypes.addressof(raw) // 64) * 64)
    made.keeps = raw
    rank = len(sizes)
    code = _driver().cuTensorMapEncodeTiled(
        ctypes.byref(made),
        6 if f16 else 9,
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,  # no interleave
        3,  # swizzle of 128 bytes
        2,  # L2 promotion of 128 bytes
        0,  # zeros outside
    )
    _check(code, "tensor map")
    return made


@cache
def _driver() -> ctypes.CDLL:
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int, what: str) -> None:
    if code != 0:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: error {code} ({(text.value or b'').decode()})")


def arch() -> str:
    """NVRTC's name of the current GPU; Hopper with its own instructions."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


def shared_bytes_limit() -> int:
    """Most dynamic shared memory of a block on the current GPU; as rust/cuda's stream_tiles."""
    capability = torch.cuda.get_device_capability()
    return {(9, 0): 227 << 10, (8, 0): 163 << 10}.get(capability, 99 << 10)


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, padding, a value of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_uint32 * 16),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class Kernels:
    """One compiled file. `exact` compiles the dimensions in; else the argument says them."""

    def __init__(self, name: str, dims: dict[str, int], exact: bool = True, **defines: object):
        values = {field: int(dims.get(field, 0)) for field in DIM_FIELDS}
        self.dims = (ctypes.c_uint32 * len(values))(*values.values())
        if exact:
            defines |= {"CONST_DIMS": 1} | {f"D_{field}": v for field, v in values.items()}
        self._key = (name, arch(), tuple(sorted(defines.items())))
        self._module: int | None = None

    def compile(self) -> None:
        """Compiles ahead of the first launch; any thread."""
        _cubin(*self._key)

    def launch(
        self,
        entry: str,
        grid,
        block: int,
        *args,
        smem: int = 0,
        dims: bool = True,
        pdl: bool = False,
        cluster: int = 1,
    ) -> None:
        """Launches `entry` (full name). Tensors go as pointers, floats as f32, None as null.

        `cluster`: blocks of a cluster, side by side in x.
        """
        if self._module is None:
            self._module = _load(*self._key)
        function = _function(self._module, entry)
        # A block has 48 KiB without this, what the kernel declares itself included.
        if smem > 0:
            _check(_driver().cuFuncSetAttribute(function, 8, smem), "shared memory size")
        values = [self.dims] if dims else []
        values += [_argument(arg) for arg in args]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        grid = (*grid, 1, 1)[:3] if isinstance(grid, tuple) else (grid, 1, 1)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        found = []
        if pdl:  # programmatic stream serialization
            found.append(LaunchAttribute(6, 0, (ctypes.c_uint32 * 16)(1)))
        if cluster > 1:
            found.append(LaunchAttribute(4, 0, (ctypes.c_uint32 * 16)(cluster, 1, 1)))
        attributes = (LaunchAttribute * 2)(*found)
        config = LaunchConfig(*grid, block, 1, 1, smem, stream, attributes, len(found))
        code = _driver().cuLaunchKernelEx(ctypes.byref(config), function, pointers, None)
        _check(code, f"launch of {entry}")


def _argument(arg):
    if isinstance(arg, TensorMap):
        return arg
    if arg is None:
        return ctypes.c_uint64(0)
    if isinstance(arg, torch.Tensor):
        assert arg.is_contiguous()
        return ctypes.c_uint64(arg.data_ptr())
    if isinstance(arg, U64):
        return ctypes.c_uint64(arg.value)
    if isinstance(arg, float):
        return ctypes.c_float(arg)
    return ctypes.c_uint32(arg)


@cache
def _cubin(name: str, target: str, defines: tuple) -> bytes:
    return compile_kernel(name, target, dict(defines)).cubin


@cache
def _load(name: str, target: str, defines: tuple) -> int:
    cubin, module = _cubin(name, target, defines), ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), cubin), f"load of {name}")
    return module.value


@cache
def _function(module: int, entry: str) -> ctypes.c_void_p:
    function = ctypes.c_void_p()
    code = _driver().cuModuleGetFunction(
        ctypes.byref(function), ctypes.c_void_p(module), entry.encode()
    )
    _check(code, f"entry {entry}")
    return function


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """‖out - reference‖ / ‖reference‖ in float64; NaN if anything is."""
    difference = (out.double() - reference.double()).norm()
    return float(difference / reference.double().norm().clamp_min(1e-30))


def poison(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A buffer whose every element shows if it was not written."""
    if dtype.is_floating_point:
        return torch.full(shape, float("nan"), dtype=dtype, device="cuda")
    return torch.full(shape, -559038737, dtype=torch.int32, device="cuda")


def u32(values) -> torch.Tensor:
    """Values below 2^32 as a device buffer (torch int32 holding the bits)."""
    import numpy as np

    return torch.from_numpy(
        np.asarray(values, dtype=np.int64).astype(np.uint32).view(np.int32)
    ).cuda()


def graph_us(launch, rounds: int = 20) -> float:
    """Median microseconds of one `launch()` (any number of kernels) replayed as a graph."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return sorted(times)[len(times) // 2]
