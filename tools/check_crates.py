"""Checks every crate that is built: licence allowed, source the crate registry, none of the banned.

Works from `cargo metadata`, so that no tool has to be compiled; cargo-deny runs too where installed
(deny.toml holds the same rules).
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def allowed(expression: str, licences: set[str]) -> bool:
    """Whether an SPDX expression can be met with `licences` ("/" is the old spelling of OR)."""
    alternatives = re.split(r"\s+OR\s+|/", expression.replace("(", "").replace(")", ""))
    return any(
        all(part.strip() in licences for part in re.split(r"\s+AND\s+", alternative))
        for alternative in alternatives
    )


def main() -> int:
    """Prints each violation; 1 if there is any."""
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    licences = set(rules["licenses"]["allow"])
    banned = {entry["crate"]: entry["reason"] for entry in rules["bans"]["deny"]}
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    faults = []
    packages = json.loads(output)["packages"]
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if package["name"] in banned:
            faults.append(f"{name}: banned, {banned[package['name']]}")
        if package["source"] is None:
            continue
        if not package["source"].startswith("registry+"):
            faults.append(f"{name}: source {package['source']} is not the crate registry")
        if not allowed(package["license"] or "none", licences):
            faults.append(f"{name}: licence {package['license']!r} is not in deny.toml")
    for fault in faults:
        print(fault)
    if shutil.which("cargo-deny"):
        checks = ["cargo", "deny", "--locked", "check", "bans", "licenses", "sources"]
        if subprocess.run(checks, cwd=ROOT, check=False).returncode != 0:
            faults.append("cargo-deny")
    print(f"{len(packages)} crates checked, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
