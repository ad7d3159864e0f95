import asyncio
import os

from ingle.server.notify import Notifier, watchdog_interval


def test_without_a_service_manager_nothing_happens(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notifier = Notifier()
    assert notifier.descriptors() == []
    notifier.send("READY=1")
    asyncio.run(notifier.watchdog(lambda: True))


def test_the_interval_is_systemds_and_only_for_this_process(monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    assert watchdog_interval() == 10
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    assert watchdog_interval() is None
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    for wrong in ("", "0", "soon"):
        monkeypatch.setenv("WATCHDOG_USEC", wrong)
        assert watchdog_interval() is None
