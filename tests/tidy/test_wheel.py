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


def test_the_wheel_lists_the_crates_that_it_is_made_of():
    files = importlib.metadata.files("ingle") or []
    (found,) = [file for file in files if file.name.endswith(check_wheel.SBOM)]
    document, lock = found.read_binary(), check_wheel.LOCK.read_text()
    assert check_wheel.faults_of_sbom(document, lock) == []
    assert check_wheel.faults_of_sbom(None, lock)
    other = lock.replace('name = "pyo3"', 'name = "other"')
    assert "pyo3" in check_wheel.faults_of_sbom(document, other)[0]
    assert "pyo3 is missing" in check_wheel.faults_of_sbom(b'{"components": []}', lock)[-2]
