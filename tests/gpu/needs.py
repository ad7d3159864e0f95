"""What a machine may lack of a whole run. Nothing of it is left out silently."""

import os
from typing import NoReturn

import pytest


def missing(what: str, reason: str) -> NoReturn:
    """Fails the test; skips it where INGLE_TEST_WITHOUT, a list with commas, names `what`."""
    if what in os.environ.get("INGLE_TEST_WITHOUT", "").split(","):
        pytest.skip(reason)
    pytest.fail(f"{reason} (INGLE_TEST_WITHOUT={what} skips what needs it)", pytrace=False)
