"""Whether a wheel may be published: kernels for every GPU, no foreign libraries, a list of the
crates that it is made of, not too large."""

import json
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = "ingle/kernels/"
# The names that build_kernels wrote. Cards differ in the kernels that they have, and only it knows
# which.
LIST = ROOT / "python" / KERNELS / "list.txt"
SBOM = ".cyclonedx.json"
LOCK = ROOT / "Cargo.lock"
ALWAYS_LISTED = (
    "ingle-core",
    "ingle-engine",
    "ingle-hardening",
    "pyo3",
    "serde_json",
    "llguidance",
)
MAX_BYTES = 32 << 20
# All that the extension may ask the dynamic linker for. libpython would tie it to one interpreter,
# NVIDIA's libraries are opened at run time.
SYSTEM_LIBRARIES = ("libc.so", "libm.so", "libgcc_s.so", "libpthread.so", "libdl.so", "librt.so")
SYSTEM_LIBRARIES += ("ld-linux",)


def faults_of_extension(path: Path) -> list[str]:
    """What is wrong with how the extension is linked."""
    command = ["readelf", "--dynamic", "--wide", path]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    entries = [line for line in output.splitlines() if "(" in line]
    needed = [line.split("[")[1].rstrip("]") for line in entries if "(NEEDED)" in line]
    faults = [f"needs {name}" for name in needed if not name.startswith(SYSTEM_LIBRARIES)]
    if not needed:
        faults.append("readelf lists no library at all")
    faults += [f"has a search path: {line.strip()}" for line in entries if "PATH)" in line]
    return [f"{path.name}: {fault}" for fault in faults]


def faults_of_kernels(names: list[str], built: list[str]) -> list[str]:
    """What is missing or foreign among the wheel's kernels; `built`: the lines of LIST."""
    found, wanted = {name.removeprefix(KERNELS) for name in names}, set(built)
    if not wanted:
        return [f"{LIST} is missing or empty: run `make wheel`, not maturin alone"]
    kinds = {"missing": wanted - found, "of no kernel that was built": found - wanted}
    return [
        f"{len(files)} files of kernels {kind}, {min(files)} first"
        for kind, files in kinds.items()
        if files
    ]


def faults_of_sbom(document: bytes | None, lock: str) -> list[str]:
    """What is wrong with the list of crates that the wheel is made of; `lock`: Cargo.lock."""
    if document is None:
        return ["no list of crates (dist-info/sboms)"]
    listed = json.loads(document)["components"]
    locked = {(each["name"], each["version"]) for each in tomllib.loads(lock)["package"]}
    faults = [
        f"{each['name']} {each['version']} is not in Cargo.lock"
        for each in listed
        if (each["name"], each["version"]) not in locked
    ]
    faults += [f"{each['name']} has no licence" for each in listed if not each.get("licenses")]
    missing = set(ALWAYS_LISTED) - {each["name"] for each in listed}
    return faults + [f"{name} is missing in the list of crates" for name in sorted(missing)]


def main(paths: list[str]) -> int:
    """Checks each wheel; 1 if anything is wrong."""
    faults = [] if paths else ["no wheel given"]
    for path in map(Path, paths):
        with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
            kernels = [n for n in wheel.namelist() if n.startswith(KERNELS)]
            built = LIST.read_text().split() if LIST.exists() else []
            faults += faults_of_kernels(kernels, built)
            lists = [name for name in wheel.namelist() if name.endswith(SBOM)]
            faults += faults_of_sbom(wheel.read(lists[0]) if lists else None, LOCK.read_text())
            for name in wheel.namelist():
                if name.endswith(".so"):
                    faults += faults_of_extension(Path(wheel.extract(name, folder)))
            compressed = sum(wheel.getinfo(name).compress_size for name in kernels)
        size = path.stat().st_size
        if size > MAX_BYTES:
            faults.append(f"{path.name}: {size} bytes, at most {MAX_BYTES}")
        print(
            f"{path.name}: {size / 1e6:.1f} MB, {compressed / 1e6:.1f} MB of it "
            f"{len(kernels)} kernels"
        )
    for fault in faults:
        print(f"check_wheel: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
