import asyncio
import os
import threading
import weakref

import pytest

from ingle import _core
from ingle.dispatch import ABORTED, Dispatcher
from ingle.errors import FatalError, RefusedError

LIMIT_S = 10.0


class Sink:
    """Collects events and says when the last one came."""

    def __init__(self):
        self.events = []
        self.ended = threading.Event()

    def __call__(self, kind, payload):
        self.events.append((kind, payload))
        if kind in (_core.END, _core.ERROR, ABORTED):
            self.ended.set()


@pytest.fixture
def dispatcher(core):
    made = Dispatcher(core)
    yield made
    made.close()


def test_thread_delivers_events_in_order(core, dispatcher):
    sink = Sink()
    key = dispatcher.submit(b"{}", sink)
    core.answer(key, texts=("x", "y", "z"))
    assert sink.ended.wait(LIMIT_S)
    assert [payload[1] for kind, payload in sink.events if kind == _core.DELTA] == ["x", "y", "z"]
    assert sink.events[-1] == (_core.END, (3, 0, 2))


def test_events_before_submit_returns_are_kept(core, dispatcher):
    # The core answers while `submit` is on its way back; the watching thread may see it first.
    def answer_and_let_it_be_drained(key, request):
        core.answer(key, texts=("early",))
        dispatcher.drain()

    core.on_submit = answer_and_let_it_be_drained
    sink = Sink()
    dispatcher.submit(b"{}", sink)
    assert sink.ended.wait(LIMIT_S)
    assert [kind for kind, _ in sink.events] == [_core.DELTA, _core.END]


def test_events_of_unknown_keys_are_not_kept_for_ever(core, dispatcher):
    sink = Sink()
    key = dispatcher.submit(b"{}", sink)
    dispatcher.abort(key)
    core.push(key, _core.FRAME, b"late")
    dispatcher.drain()
    assert dispatcher._early == {}
    assert sink.events == [(ABORTED, None)]


def test_refused_submit_leaves_nothing(core, dispatcher):
    def refuse(key, request):
        raise RefusedError("no", "n")

    core.on_submit = refuse
    with pytest.raises(RefusedError):
        dispatcher.submit(b"{}", Sink())
    assert dispatcher._pending == 0
    assert dispatcher._sinks == {}


def test_abort_reaches_the_core_and_ends_the_sink_once(core, dispatcher):
    sink = Sink()
    key = dispatcher.submit(b"{}", sink)
    dispatcher.abort(key)
    dispatcher.abort(key)
    assert sink.events == [(ABORTED, None)]
    assert core.aborted == [key]


def test_close_ends_everything_and_refuses_more(core):
    dispatcher = Dispatcher(core)
    sinks = [Sink(), Sink()]
    for sink in sinks:
        dispatcher.submit(b"{}", sink)
    dispatcher.close()
    assert [sink.events for sink in sinks] == [[(ABORTED, None)]] * 2
    with pytest.raises(FatalError):
        dispatcher.submit(b"{}", Sink())


async def test_loop_delivers_in_order(core, dispatcher):
    order = []

    def sink(kind, payload):
        order.append(payload)
        if kind == _core.END:
            done.set_result(None)

    done = asyncio.get_running_loop().create_future()
    dispatcher.use_loop(asyncio.get_running_loop(), lambda reason: None)
    key = dispatcher.submit(b"{}", sink)
    core.push(key, _core.FRAME, b"1")
    core.push(key, _core.FRAME, b"2")
    core.push(key, _core.END)
    await asyncio.wait_for(done, LIMIT_S)
    assert order == [b"1", b"2", None]


def test_failing_sink_harms_no_other(core, dispatcher, caplog):
    def fail(kind, payload):
        raise ZeroDivisionError

    good = Sink()
    bad_key, good_key = dispatcher.submit(b"{}", fail), dispatcher.submit(b"{}", good)
    core.push(bad_key, _core.FRAME, b"1")
    core.answer(good_key)
    assert good.ended.wait(LIMIT_S)
    assert core.aborted == [bad_key]
    assert "a sink failed" in caplog.text


async def test_death_of_the_engine_is_reported(core, dispatcher):
    reported = asyncio.get_running_loop().create_future()
    dispatcher.use_loop(asyncio.get_running_loop(), reported.set_result)
    core.push(0, _core.ERROR, b'{"error":{"message":"device lost"},"status":503}')
    assert await asyncio.wait_for(reported, LIMIT_S) == "device lost"


async def test_thread_gives_way_to_a_loop(core, dispatcher):
    first = Sink()
    key = dispatcher.submit(b"{}", first)
    core.answer(key)
    assert first.ended.wait(LIMIT_S)
    dispatcher.use_loop(asyncio.get_running_loop(), lambda reason: None)
    assert dispatcher._thread is None
    done = asyncio.get_running_loop().create_future()
    key = dispatcher.submit(b"{}", lambda kind, payload: done.set_result(kind))
    core.push(key, _core.END)
    assert await asyncio.wait_for(done, LIMIT_S) == _core.END


def test_dispatcher_that_nobody_holds_is_freed_with_its_thread(core):
    dispatcher = Dispatcher(core)
    dispatcher.submit(b"{}", Sink())
    thread, freed = dispatcher._thread, weakref.ref(dispatcher)
    assert thread.is_alive()
    del dispatcher
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert freed() is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_is_refused_and_harms_nothing(core, dispatcher):
    sink = Sink()
    key = dispatcher.submit(b"{}", sink)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            dispatcher.submit(b"{}", Sink())
        except FatalError:
            dispatcher.abort(key)
            dispatcher.close()
            dispatcher._wake()
            code = 0 if core.aborted == [] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    core.answer(key)
    assert sink.ended.wait(LIMIT_S), "the child stopped the parent's thread"
