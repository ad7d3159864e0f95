import pytest
from aiohttp.test_utils import make_mocked_request

from ingle.server.request_id import label
from ingle.server.traceparent import parent_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def test_a_log_line_names_the_trace_of_the_caller():
    headers = {"X-Request-Id": "abc", "traceparent": PARENT}
    assert label(make_mocked_request("POST", "/", headers)) == f"abc trace {TRACE}"
    assert label(make_mocked_request("POST", "/", {"X-Request-Id": "abc"})) == "abc"


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (PARENT, TRACE),
        ("01" + PARENT[2:] + "-more", TRACE),
        (PARENT + "-more", None),
        ("ff" + PARENT[2:], None),
        (PARENT.upper(), None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (PARENT[:-1], None),
        (PARENT + "\n", None),
        ("", None),
        (None, None),
    ],
)
def test_only_a_valid_traceparent_is_believed(header, trace):
    parent = parent_of(header)
    assert (parent and parent.trace_id) == trace


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("fe", False)])
def test_the_flag_of_a_traceparent_says_whether_it_is_sampled(flags, sampled):
    parent = parent_of(PARENT[:-2] + flags)
    assert (parent.span_id, parent.is_sampled) == ("00f067aa0ba902b7", sampled)
