"""The threads of a served process are those that docs/ARCHITECTURE.md lists."""

import re
from collections import Counter
from pathlib import Path

import pytest

from server.worker import Worker

DOCUMENT = Path(__file__).parents[2] / "docs/ARCHITECTURE.md"


def roster(device, num_engines):
    """Names and counts that the document gives for a device; a count is None if it varies."""
    rows = re.findall(
        r"^\| (`[^|]+) \| ([^|]+) \| (any|cpu|sim|cuda) \|$", DOCUMENT.read_text(), re.M
    )
    assert len(rows) > 10
    found = {}
    for names, threads, where in rows:
        if where in ("any", device):
            count = re.match(r"\d+", threads)
            number = num_engines if "an engine" in threads else 1
            found[tuple(re.findall("`([^`]+)`", names))] = number * int(count[0]) if count else None
    return found


@pytest.mark.parametrize(
    ("device", "num_engines"), [("cpu", 1), ("sim", 1), ("cpu", 2), ("sim", 2)]
)
def test_a_served_process_has_the_threads_that_the_document_lists(device, num_engines):
    with Worker("--device", device, "--data-parallel-size", num_engines) as worker:
        worker.complete()
        tasks = Path(f"/proc/{worker.process.pid}/task").iterdir()
        names = [(task / "comm").read_text().strip() for task in tasks]
        assert worker.stop() == 0, worker.errors()
    # The interpreter's own name may have a version.
    names = [re.sub(r"^python[\d.]+$", "python", name) for name in names]
    found = Counter(re.sub(r"-\d+$", "-N", name) for name in names)
    wanted = roster(device, num_engines)
    assert set(found) <= {name for names in wanted for name in names}
    for names, count in wanted.items():
        threads = sum(found[name] for name in names)
        assert threads > 0 if count is None else threads == count, names
