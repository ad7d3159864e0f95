"""What the process that sends spans can and cannot do once it is confined."""

import ctypes
import errno
import socket
import subprocess
import sys
import tempfile

import pytest

CONFINED = """
import errno, os, socket, sys, threading
from ingle.hardening import Lockdown, confine_exporter, finish_exporter
ours, other, secret = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
Lockdown("auto", device="cpu").shed()
confine_exporter([], [ours])

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
FINISHED = """
ready, go, found = threading.Event(), threading.Event(), []

def sends():
    ready.set()
    go.wait()
    connect(ours)
    found.append(code(lambda: socket.socket(socket.AF_UNIX)))

thread = threading.Thread(target=sends)
thread.start()
ready.wait()
finish_exporter()
go.set()
thread.join()
open(os.__file__).close()
print(*found, code(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW)))
print(code(lambda: open("/dev/null", "w")), code(lambda: os.kill(os.getpid(), 0)))
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print(errno.EPERM)
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
        found = run(CONFINED, *ports, secret.name)
    connects, others, reads, writes, forks, binds = found
    assert connects == 0
    assert (others, reads, writes, binds) == (errno.EACCES,) * 4
    assert forks == errno.EPERM


def test_its_filter_comes_to_threads_that_run_and_leaves_connecting_and_reading():
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = str(ours.getsockname()[1])
        found = run(CONFINED + FINISHED, port, port, "/proc/1/mem")[6:]
    assert found == [errno.EPERM] * 5, "a Unix socket, a raw one, a write, a signal, a new thread"


def run(script, *arguments):
    """The numbers that it prints."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [int(each) for each in done.stdout.split()]
