"""Compiles kernels/ with NVRTC through ctypes.

Needs only the package nvidia-cuda-nvrtc: no GPU, no driver, no headers.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "kernels"


class CompileError(Exception):
    """NVRTC refused a kernel; the message is its log."""


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of one entry. Units: bytes, and 32-bit registers a thread.

    `serialised`: each wgmma is waited for before the next instruction.
    """

    registers: int
    stack: int
    spill: int
    serialised: bool = False


@dataclass(frozen=True)
class Compiled:
    """A cubin and the resources of each of its entries."""

    cubin: bytes
    entries: dict[str, Resources]


def library_folder() -> Path | None:
    """Folder of the pip package's libraries, or None if it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        for folder in ("cu13/lib", "cuda_nvrtc/lib"):
            if list((Path(root) / folder).glob("libnvrtc.so.*")):
                return Path(root) / folder
    return None


@cache
def _library() -> ctypes.CDLL:
    folder = library_folder()
    if folder is None:
        raise CompileError("package nvidia-cuda-nvrtc is not installed")
    # libnvrtc looks for its builtins by name alone, so they must be loaded before.
    ctypes.CDLL(str(next(folder.glob("libnvrtc-builtins.so.*"))), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(next(folder.glob("libnvrtc.so.*"))))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _bytes_of(program: ctypes.c_void_p, what: str) -> bytes:
    library, size = _library(), ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def compile_kernel(
    name: str, arch: str, defines: dict[str, object], more: Sequence[str] = ()
) -> Compiled:
    """Compiles `kernels/NAME.cu` for `arch` (such as sm_90a); `more` are options of NVRTC.

    Raises CompileError with NVRTC's log.
    """
    library, program = _library(), ctypes.c_void_p()
    source = (KERNELS / f"{name}.cu").read_bytes()
    paths = sorted(KERNELS.glob("*.cuh"))
    headers = (ctypes.c_char_p * len(paths))(*(path.read_bytes() for path in paths))
    names = (ctypes.c_char_p * len(paths))(*(path.name.encode() for path in paths))
    library.nvrtcCreateProgram(
        ctypes.byref(program), source, f"{name}.cu".encode(), len(paths), headers, names
    )
    options = [
        f"--gpu-architecture={arch}",
        "-std=c++17",
        "-default-device",
        "--ptxas-options=-v",
        *(f"-D{key}={value}" for key, value in defines.items()),
        *more,
    ]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = library.nvrtcCompileProgram(program, len(options), array)
    log = _bytes_of(program, "ProgramLog").decode(errors="replace").rstrip("\0")
    try:
        if code != 0:
            raise CompileError(f"{name}.cu for {arch} with {defines}:\n{log}")
        return Compiled(_bytes_of(program, "CUBIN"), _resources(log))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _resources(log: str) -> dict[str, Resources]:
    entries: dict[str, Resources] = {}
    slow = re.findall(
        r"wgmma\.mma_async instructions are serialized .* in the function '(\w+)'", log
    )
    for part in log.split("Compiling entry function '")[1:]:
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", part)
        registers = re.search(r"Used (\d+) registers", part)
        if stack and registers:
            name = part.split("'")[0]
            sizes = (int(registers[1]), int(stack[1]), int(stack[2]))
            entries[name] = Resources(*sizes, name in slow)
    return entries
