"""What the process that sends spans can and cannot do once it is confined."""

import ctypes
import errno
import socket
import subprocess
import sys
import tempfile

import pytest

CONFINED = """
import errno, os, socket, sys
from ingle.hardening import Lockdown, confine_exporter
ours, other, secret = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
Lockdown("auto", device="cpu").shed()
confine_exporter([], ours)

def code(call):
    try:
        call()
    except OSError as error:
        return error.errno
    return 0

def connect(port):
    socket.create_connection(("127.0.0.1", port)).close()

print(code(lambda: connect(ours)), code(lambda: connect(other)), code(lambda: open(secret)))
print(code(lambda: open(secret + ".new", "w")), code(os.fork))
print(code(lambda: socket.create_server(("", 0))))
"""


LANDLOCK_VERSION = ctypes.CDLL(None).syscall(444, None, 0, 1)
"""landlock_create_ruleset on x86-64 and ARM; below 0 without Landlock."""


@pytest.mark.skipif(LANDLOCK_VERSION < 4, reason="needs Landlock's rules for TCP ports")
def test_it_connects_to_its_collector_s_port_and_does_nothing_else():
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        socket.create_server(("127.0.0.1", 0)) as other,
        tempfile.NamedTemporaryFile() as secret,
    ):
        ports = [str(each.getsockname()[1]) for each in (ours, other)]
        command = [sys.executable, "-c", CONFINED, *ports, secret.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = [int(each) for each in done.stdout.split()]
    assert len(found) == 6, done.stderr
    connects, others, reads, writes, forks, binds = found
    assert connects == 0
    assert (others, reads, writes, binds) == (errno.EACCES,) * 4
    assert forks == errno.EPERM
