"""`ingle security check`: proves on this machine that the lock-down refuses what it must.

Main thread of a process with one thread. The probes run in child processes.
"""

import json
import tempfile
from typing import Any

from ingle import _core

NAME_WIDTH = 62
OUTCOME_WIDTH = 16


def check() -> dict[str, Any]:
    """Makes every probe. Blocks for about a second.

    Errors: HardeningError if the probes cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="ingle-security-") as scratch:
        report: dict[str, Any] = json.loads(_core.security_check(scratch))
    return report


def check_lines(report: dict[str, Any]) -> list[str]:
    """The report as a table, and what it comes to."""
    lines = [_row("act", "locked down", "without the rule", "")]
    for probe in report["probes"]:
        verdict = probe["verdict"].replace("_", " ")
        why = f"{verdict}: {probe['why']}" if probe["why"] else verdict
        lines.append(_row(probe["name"], probe["found"], probe["control"], why))
    counts = f"{report['passed']} passed, {report['failed']} failed"
    return [*lines, "", f"{counts}, {report['not_probed']} not probed on this kernel"]


def _row(name: str, found: str, control: str, verdict: str) -> str:
    cells = f"{name:{NAME_WIDTH}}{found:{OUTCOME_WIDTH}}{control:{OUTCOME_WIDTH + 2}}{verdict}"
    return cells.rstrip()
