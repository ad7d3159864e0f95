"""Fixtures of the lock-down's tests: one locked server for all of them."""

import pytest

from server.worker import Worker


@pytest.fixture(scope="session")
def locked():
    with Worker("--device", "cpu") as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()
