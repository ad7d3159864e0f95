"""Fixtures of the unit tests."""

import pytest

from unit.fake_core import FakeCore


@pytest.fixture
def core():
    """A core that does what the test says."""
    return FakeCore()
