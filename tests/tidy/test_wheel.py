"""How the extension is linked, and what `make wheel` checks before a wheel is published."""

import importlib.metadata
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


def test_missing_and_foreign_kernels_are_named():
    # A build that only some cards have is in the list for these alone.
    built = ["pool-bf16.sm_80.cubin", "pool-bf16.sm_90a.cubin", "gemm-e4m3.sm_90a.cubin"]
    whole = [f"ingle/kernels/{name}" for name in built]
    assert check_wheel.faults_of_kernels(whole, built) == []
    for name in built:
        rest = [other for other in built if other != name]
        (fault,) = check_wheel.faults_of_kernels([f"ingle/kernels/{n}" for n in rest], built)
        assert "missing" in fault
        assert name in fault
        (fault,) = check_wheel.faults_of_kernels(whole, rest)
        assert "no kernel that was built" in fault
        assert name in fault
    assert "make wheel" in check_wheel.faults_of_kernels(whole, [])[0]


def test_the_wheel_lists_the_crates_that_it_is_made_of():
    files = importlib.metadata.files("ingle") or []
    (found,) = [file for file in files if file.name.endswith(check_wheel.SBOM)]
    document, lock = found.read_binary(), check_wheel.LOCK.read_text()
    assert check_wheel.faults_of_sbom(document, lock) == []
    assert check_wheel.faults_of_sbom(None, lock)
    other = lock.replace('name = "pyo3"', 'name = "other"')
    assert "pyo3" in check_wheel.faults_of_sbom(document, other)[0]
    assert "pyo3 is missing" in check_wheel.faults_of_sbom(b'{"components": []}', lock)[-2]
