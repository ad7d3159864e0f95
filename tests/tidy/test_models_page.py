"""docs/MODELS.md lists the families, reference cases and formats that there are, and no others."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/MODELS.md").read_text()


def rows(section):
    """The cells of a section's table."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    # Beneath the head and its rule.
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def table(path, name):
    """The texts of a Rust table, a list for each of its lines."""
    source = (ROOT / path).read_text()
    (body,) = re.findall(rf"\bconst {name}: \[.*?\] =\s*\[(.*?)\n?\];", source, re.S)
    return body


def test_each_family_has_its_row():
    folder = ROOT / "rust/model/src/config/family"
    sources = [path.read_text() for path in folder.glob("*.rs")]
    named = r': {0} =\s+{0} \{{\s*model_type: "(\w+)"'
    families, wrappers = (
        {name for text in sources for name in re.findall(named.format(kind), text)}
        for kind in ("Facts", "Wrapper")
    )
    assert families
    assert wrappers
    listed = [names(row[0])[0] for row in rows("Families")]
    assert len(listed) == len(set(listed))
    assert set(listed) == families
    whole = " ".join(cell for row in rows("Families") for cell in row)
    assert wrappers <= set(names(whole))


def test_each_reference_case_is_listed_once():
    cases = {path.stem for path in (ROOT / "tests/golden/cases").glob("*.json")}
    listed = [name for row in rows("Families") for name in names(row[2])]
    listed += [name for row in rows("Weights") for name in names(row[4])]
    # One is the case of a family and of a format.
    assert set(listed) == cases
    assert len(listed) - len(set(listed)) <= 1


def test_a_case_stands_in_the_row_of_its_family():
    for row in rows("Families"):
        for case in names(row[2]):
            config = ROOT / f"tests/golden/models/{case}/config.json"
            if config.exists():
                read = json.loads(config.read_text())
                assert read.get("text_config", read)["model_type"] == names(row[0])[0]


def test_each_format_is_listed():
    tools = set(re.findall(r'"(\w+)",\s*&\[', table("rust/text/src/tools/format.rs", "TABLE")))
    assert {names(row[0])[0] for row in rows("Tool calls")} == tools
    reasoning = re.findall(r'^\s*\("(\w+)"', table("rust/text/src/reasoning.rs", "TABLE"), re.M)
    assert {names(row[0])[0] for row in rows("Reasoning")} == set(reasoning)
    aliases = re.findall(r'"(\w+)"', table("rust/text/src/reasoning.rs", "THINK"))
    (think,) = [row for row in rows("Reasoning") if names(row[0]) == ["think"]]
    assert names(think[2]) == aliases
    # What the families' rows name exists.
    for row in rows("Families"):
        assert set(names(row[4])) <= tools, row
        assert set(names(row[5])) <= set(reasoning), row
