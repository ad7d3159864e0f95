import pytest

from ingle.server import openmetrics

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        ("text/plain", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_openmetrics_is_for_scrapers_that_prefer_it(accept, wanted):
    assert openmetrics.is_wanted(accept) is wanted


def test_only_the_families_of_counters_lose_their_ending():
    text = b"# HELP a_total A.\n# TYPE a_total counter\na_total 1\n"
    text += b"# HELP b_total B.\n# TYPE b_total histogram\nb_total_count 2\n"
    of = openmetrics.of(text).decode().splitlines()
    assert of[:3] == ["# HELP a A.", "# TYPE a counter", "a_total 1"]
    assert of[3:] == ["# HELP b_total B.", "# TYPE b_total histogram", "b_total_count 2", "# EOF"]
