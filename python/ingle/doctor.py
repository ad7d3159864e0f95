"""The report of `ingle doctor` for people. Pure."""

from typing import Any, Final

GIB: Final = 1 << 30
NAME_WIDTH: Final = 20


def doctor_lines(report: dict[str, Any]) -> list[str]:
    """The core's report as lines: sections, a finding a line, below it what a lack costs.

    What is null was not looked for, and is left out. A finding is a value, or an object of
    `missing` or `value` and `cost`.
    """
    lines = []
    for name, value in report.items():
        if isinstance(value, dict) and not _is_finding(value):
            lines += ["", name, *_section(value)]
        else:
            lines += _finding(name, value, "")
    return lines


def _section(findings: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in findings.items():
        if isinstance(value, dict) and not _is_finding(value):
            # A device that is usable, with nothing further to say, takes one line.
            lines += _finding(name, "yes" if value.get("usable") else "no", "  ")
            rest = {key: inner for key, inner in value.items() if key != "usable"}
            lines += ["  " + line for line in _section(rest)]
        else:
            lines += _finding(name, value, "  ")
    return lines


def _is_finding(value: dict[str, Any]) -> bool:
    return "cost" in value


def _finding(name: str, value: Any, indent: str) -> list[str]:
    if value is None:
        return []
    cost = None
    if isinstance(value, dict):
        cost = value["cost"]
        value = value["value"] if "value" in value else f"missing: {value['missing']}"
    label = name.removesuffix("_bytes").replace("_", " ")
    text = f"{value / GIB:.1f} GiB" if name.endswith("_bytes") else _shown(value)
    lines = [f"{indent}{label:{NAME_WIDTH}}{text}"]
    if cost is not None:
        lines.append(f"{indent}{'':{NAME_WIDTH}}what this costs: {cost}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
