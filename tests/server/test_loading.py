"""How far a start is: a bar on a terminal, a line for each phase in a log."""

import io
import threading

from ingle import _core
from ingle.engine import Engine
from ingle.loading import WeightsBar
from server.worker import TINY, Worker, wait_for


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Counted:
    """Stands for the core, which reads 3 of 4 MB and waits."""

    def so_far(self):
        return (3_000_000, 4_000_000)


def test_a_terminal_shows_how_far_the_weights_are():
    out = Terminal()
    bar = WeightsBar("big", out=out)
    bar.progress = Counted()
    with bar:
        wait_for(lambda: "\r" in out.getvalue(), 60, out.getvalue)
    line = out.getvalue().partition("\x1b[K")[0]
    assert line.startswith("\rbig: weights [##################------]  75% 3 of 4 MB")
    assert out.getvalue().endswith("\r\x1b[K"), "nothing of it stays"


def test_nothing_is_shown_and_no_thread_starts_where_there_is_no_terminal():
    out = io.StringIO()
    before = threading.active_count()
    for shows, where in ((True, out), (False, Terminal())):
        with WeightsBar("big", shows=shows, out=where):
            assert threading.active_count() == before
        assert where.getvalue() == ""


def test_the_core_counts_the_weights_that_it_reads():
    progress = _core.LoadProgress()
    assert progress.so_far() == (0, 0)
    options = Engine(str(TINY), device="sim").settings.engine_options()
    engine = _core.Engine(options.replace(b'"sim"', b'"cpu"'), progress=progress)
    done, total = progress.so_far()
    assert done >= total > 100_000
    engine.shutdown()


def test_a_log_has_a_line_for_each_phase_of_a_load():
    with Worker("--device", "cpu") as worker:
        assert worker.stop() == 0, worker.errors()
        lines = worker.errors()
    for phase in ("model files", "tokenizer and templates", "device"):
        assert lines.count(f"INFO {TINY.name}: {phase}: ") == 1, lines
    assert "\r" not in lines
