"""Servers of tests/server for the tests here; the clients' own warnings are their affair."""

from server.conftest import cpu, cpu_worker
from server.test_structured import hermes

__all__ = ["cpu", "cpu_worker", "hermes"]
