"""Where devices find and keep files of their own: libraries, kernels, the cache. At start."""

import os
import sys
from pathlib import Path
from typing import Any

from ingle import _core

PREBUILT_KERNELS = Path(__file__).resolve().parent / "kernels"
"""Kernels in the wheel for machines without NVRTC; a build from source has none."""


may_use_gpu = _core.may_use_gpu
"""Whether a GPU may be used: for a value of `--device`, or the name of a device that was built."""


def default_cache_dir() -> str:
    """The default folder for compiled kernels."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(base) / "ingle")


def cuda_libraries(nvrtc: Path | None = None, cublaslt: Path | None = None) -> dict[str, Any]:
    """Where the core looks for NVIDIA's libraries: given files, then pip's packages."""
    exact = {"nvrtc": nvrtc, "cublaslt": cublaslt}
    found: dict[str, Any] = {name: str(path) for name, path in exact.items() if path}
    # Not Path.is_dir, which raises for a folder that this user may not look into.
    found["site_packages"] = [p for p in sys.path if p and os.path.isdir(os.path.join(p, "nvidia"))]
    return found


def places(
    nvrtc: Path | None = None,
    cublaslt: Path | None = None,
    *,
    cache_dir: str | Path | None = None,
    kernels: bool = True,
) -> dict[str, Any]:
    """Where devices find and keep files: the core's option `places`, and what `ingle doctor` reads.

    `kernels`: name the wheel's kernels, if it has some.
    """
    found: dict[str, Any] = {"cuda_libraries": cuda_libraries(nvrtc, cublaslt)}
    if cache_dir is not None:
        found["cache_dir"] = str(cache_dir)
    if kernels and PREBUILT_KERNELS.is_dir():
        found["prebuilt_kernels"] = str(PREBUILT_KERNELS)
    return found
