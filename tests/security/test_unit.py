"""The systemd unit: its score, and that it leaves the worker the calls of its own lock-down."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

SECURITY = Path(__file__).parents[2] / "security"
MOST_EXPOSURE = 1.5
LOCK_DOWN = """
    capget fork landlock_add_rule landlock_create_ruleset landlock_restrict_self
    prctl prlimit64 seccomp umask socketpair clone
"""
START = (
    "openat newfstatat getdents64 bind listen fchmodat flock statx readlink execve mmap mprotect"
)

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)


def analyze(*arguments):
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_unit_exposes_little():
    threshold = f"--threshold={MOST_EXPOSURE * 10:.0f}"
    unit = SECURITY / "ingle.service"
    done = analyze("security", "--offline=yes", "--no-pager", threshold, str(unit))
    score = re.search(r"exposure level for ingle\.service: ([\d.]+)", done.stdout)
    assert score, done.stdout + done.stderr
    assert float(score[1]) <= MOST_EXPOSURE
    assert done.returncode == 0, done.stdout


def call_groups():
    """The groups of system calls that this systemd knows, each with its members."""
    text = re.sub(r"\x1b\[[\d;]*m", "", analyze("syscall-filter", "--no-pager").stdout)
    groups, members = {}, None
    for line in text.splitlines():
        if line.startswith("@"):
            members = groups.setdefault(line.strip(), set())
        elif members is not None and line.strip() and not line.strip().startswith("#"):
            members.add(line.strip())
    return groups


def expanded(groups, name):
    if not name.startswith("@"):
        return {name}
    return set().union(*(expanded(groups, each) for each in groups[name]))


def test_the_unit_leaves_what_the_worker_calls():
    groups = call_groups()
    unit = (SECURITY / "ingle.service").read_text()
    allowed = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.M):
        names = set().union(*(expanded(groups, each) for each in line.removeprefix("~").split()))
        allowed = allowed - names if line.startswith("~") else allowed | names
    wanted = {*LOCK_DOWN.split(), *START.split()}
    for policy in ("serve", "keeper", "exporter"):
        rules = tomllib.loads((SECURITY / f"policy/{policy}.toml").read_text())["rules"]
        wanted |= {call for rule in rules if rule["act"] == "allow" for call in rule["calls"]}
    assert wanted - allowed == set()
