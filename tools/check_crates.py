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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS_ONLY = {"tokenizers", "onig", "onig_sys", "esaxx-rs"}
"""An oracle of the tests, and the C and C++ code in it; cargo-deny has no rule for this."""


def allowed(expression: str, licences: set[str]) -> bool:
    """Whether an SPDX expression can be met with `licences` ("/" is the old spelling of OR)."""
    alternatives = re.split(r"\s+OR\s+|/", expression.replace("(", "").replace(")", ""))
    return any(
        all(part.strip() in licences for part in re.split(r"\s+AND\s+", alternative))
        for alternative in alternatives
    )


def dependents(metadata: dict[str, Any]) -> dict[str, set[str]]:
    """Names of the crates that depend on each package directly, by package id."""
    names = {package["id"]: package["name"] for package in metadata["packages"]}
    users: dict[str, set[str]] = {package: set() for package in names}
    for node in metadata["resolve"]["nodes"]:
        for dependency in node["dependencies"]:
            users[dependency].add(names[node["id"]])
    return users


def shipped(metadata: dict[str, Any]) -> set[str]:
    """Names of the crates that the wheel is made of: what is reached without dev-dependencies."""
    names = {package["id"]: package["name"] for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found: set[str] = set()
    waiting = list(metadata["workspace_members"])
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        waiting += [
            dependency["pkg"]
            for dependency in nodes[package]["deps"]
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
        ]
    return {names[package] for package in found}


def main() -> int:
    """Prints each violation; 1 if there is any."""
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    licences = set(rules["licenses"]["allow"])
    banned = {entry["crate"]: entry for entry in rules["bans"]["deny"]}
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    faults = []
    metadata = json.loads(output)
    packages = metadata["packages"]
    users = dependents(metadata)
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if (rule := banned.get(package["name"])) is not None:
            # As cargo-deny has it: a banned crate may be there for the crates named as wrappers.
            others = users[package["id"]] - set(rule.get("wrappers", ()))
            if others or "wrappers" not in rule:
                faults.append(f"{name}: banned, {rule['reason']}; used by {sorted(others)}")
        if package["source"] is None:
            continue
        if not package["source"].startswith("registry+"):
            faults.append(f"{name}: source {package['source']} is not the crate registry")
        if not allowed(package["license"] or "none", licences):
            faults.append(f"{name}: licence {package['license']!r} is not in deny.toml")
    faults += [
        f"{name}: in the wheel, allowed in tests only" for name in shipped(metadata) & TESTS_ONLY
    ]
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
