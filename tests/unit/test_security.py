from ingle import security

PROBE = {"name": "run a program", "found": "killed", "control": "ENOENT", "why": ""}


def test_the_table_shows_each_verdict_and_counts_them():
    probes = [
        PROBE | {"verdict": "passed"},
        PROBE | {"verdict": "failed", "found": "ok", "why": "must be killed"},
        PROBE | {"verdict": "not_probed", "found": "", "why": "needs landlock 6, here is 0"},
    ]
    report = {"ok": False, "passed": 1, "failed": 1, "not_probed": 1, "probes": probes}
    lines = security.check_lines(report)
    assert lines[1].split() == ["run", "a", "program", "killed", "ENOENT", "passed"]
    assert lines[2].endswith("failed: must be killed")
    assert lines[3].endswith("not probed: needs landlock 6, here is 0")
    assert lines[-1] == "1 passed, 1 failed, 1 not probed on this kernel"
