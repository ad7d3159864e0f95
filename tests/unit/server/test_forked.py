"""Processes that the worker forks."""

import os
import subprocess
import sys

import pytest

from ingle.server.span_exporter import ports_of


def test_what_a_forked_process_raises_is_printed_and_ends_it_alone():
    script = """
import os
from ingle.server.forked import fork

def run():
    raise ValueError("no such collector")

child = fork(run)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "ValueError: no such collector" in done.stderr


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("http://10.0.0.1/v1/traces", [80]),
        ("https://[2001:db8::1]/v1/traces", [443]),
        ("http://10.0.0.1:4318/v1/traces", [4318]),
        ("https://collector.example:4318/v1/traces", [4318, 53]),
    ],
)
def test_the_ports_of_an_endpoint_are_its_own_and_for_a_name_that_of_dns(url, ports):
    assert ports_of(url) == ports
