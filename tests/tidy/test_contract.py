"""kernels/contract.cuh says what rust/cuda/src/contract/mod.rs does, from which it is written.

The Rust test `the_header_in_the_tree_is_current` compares every byte; this one needs no compiler.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

from contract import CONSTANTS, FIELDS, FORMULAS  # noqa: E402

SOURCE = (ROOT / "rust" / "cuda" / "src" / "contract" / "mod.rs").read_text()
SAMPLING = (ROOT / "rust" / "core" / "src" / "sampling.rs").read_text()
REMEDY = "run `cargo run -p ingle-cuda --example write_contract`"


def test_the_header_has_every_constant_with_its_value() -> None:
    declared = re.findall(r"^    ([A-Z]\w+) = (u32::MAX|\d+);$", SOURCE, re.MULTILINE)
    values = {name: 2**32 - 1 if value == "u32::MAX" else int(value) for name, value in declared}
    assert len(values) > 40
    assert values == CONSTANTS, REMEDY


def test_the_header_has_every_structure_with_its_fields_in_order() -> None:
    declared = re.findall(
        r"^struct (\w+) = (?:\d+|\(.*?\)) \{\n(.*?)^\}", SOURCE, re.MULTILINE | re.DOTALL
    )
    fields = {name: re.findall(r"^    (\w+):", body, re.MULTILINE) for name, body in declared}
    # The core's table of plain sampling fields stands for the first of a slot.
    assert fields["Slot"][0] == "plain"
    plain = re.findall(r"^    (\w+): [uf]32 = ", SAMPLING, re.MULTILINE)
    fields["Slot"][:1] = plain
    assert len(fields["Dims"]) == 16
    assert fields == {name: list(known) for name, known in FIELDS.items()}, REMEDY


def test_the_header_has_every_formula_and_python_reads_it() -> None:
    declared = re.findall(r"^    ([a-z]\w+)\(([a-z_, ]*)\) =", SOURCE, re.MULTILINE)
    assert len(declared) > 10
    known = {name: list(inspect.signature(f).parameters) for name, f in FORMULAS.items()}
    assert known == {name: arguments.split(", ") for name, arguments in declared}, REMEDY
    # As rust/cuda/src/attention_launch.rs tests it of the same formula.
    assert FORMULAS["attention_shared_bytes"](128, 3, 2) == 112_000
