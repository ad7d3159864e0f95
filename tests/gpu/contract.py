"""What host and kernels agree on, read from kernels/contract.cuh. Pure; needs no GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

HEADER = Path(__file__).resolve().parents[2] / "kernels" / "contract.cuh"


def _read() -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    text = HEADER.read_text()
    constants = re.findall(r"^#define (\w+) (\w+)u$", text, re.MULTILINE)
    structures = re.findall(r"^struct (\w+) \{\n(.*?)\n\};", text, re.MULTILINE | re.DOTALL)
    fields = {
        name: {field: int(count or 1) for field, count in re.findall(r"(\w+)(?:\[(\d+)\])?;", body)}
        for name, body in structures
    }
    return {name: int(value, 0) for name, value in constants}, fields


def _formulas() -> dict[str, Callable[..., int]]:
    """The header's functions: C++ that is Python too but for `/` and `? :`."""
    found = re.findall(
        r"^constexpr u32 (\w+)\((.*)\) \{\n    return (.*);\n\}", HEADER.read_text(), re.MULTILINE
    )
    scope: dict[str, object] = dict(CONSTANTS)
    for name, arguments, value in found:
        python = re.sub(r"^(.*) \? (.*) : (.*)$", r"(\2) if (\1) else (\3)", value)
        parameters = arguments.replace("u32 ", "")
        code = f"lambda {parameters}: {python.replace('/', '//')}"
        scope[name] = eval(code, scope)
    return {name: scope[name] for name, _, _ in found}  # type: ignore[misc]


def words_of(structure: str, **values: int) -> list[int]:
    """The words of a structure; fields that are not given are 0, arrays too."""
    unknown = values.keys() - FIELDS[structure].keys()
    assert not unknown, f"{structure} has no {unknown}"
    return [
        word
        for field, count in FIELDS[structure].items()
        for word in [values.get(field, 0)] + [0] * (count - 1)
    ]


def place_of(structure: str, field: str) -> int:
    """Words before a field."""
    fields = FIELDS[structure]
    return sum(list(fields.values())[: list(fields).index(field)])


CONSTANTS, FIELDS = _read()
"""Constants by name, and words that each field takes by structure, in order."""
FORMULAS = _formulas()
"""Numbers that host and kernels compute alike, by name."""
DIM_FIELDS = list(FIELDS["Dims"])
