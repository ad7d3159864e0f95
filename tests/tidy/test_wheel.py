"""How the extension is linked, and what `make wheel` checks before a wheel is published."""

import importlib.util
from pathlib import Path

from ingle import _core

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_wheel.py"
spec = importlib.util.spec_from_file_location("check_wheel", TOOL)
check_wheel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_wheel)


def test_the_extension_needs_the_system_s_libraries_alone():
    """No libpython (one interpreter's), no CUDA (not on every machine), no search path."""
    assert check_wheel.faults_of_extension(Path(_core.__file__)) == []


def test_a_foreign_library_is_found(monkeypatch):
    monkeypatch.setattr(check_wheel, "SYSTEM_LIBRARIES", ("libm.so", "libgcc_s.so", "ld-linux"))
    faults = check_wheel.faults_of_extension(Path(_core.__file__))
    assert any("needs libc.so" in fault for fault in faults)


def test_a_missing_kernel_is_named():
    def names(stem):
        return [f"ingle/kernels/{stem}.{t}.{s}" for t, s in check_wheel.TARGETS.items()]

    whole = names("pool-bf16") + names("moe-f16")
    assert check_wheel.faults_of_kernels(whole) == []
    for name in whole:
        (fault,) = check_wheel.faults_of_kernels([n for n in whole if n != name])
        assert name.split(".")[1] in fault
        assert name.split("/")[2].split(".")[0] in fault
    assert "no kernels" in check_wheel.faults_of_kernels([])[0]
