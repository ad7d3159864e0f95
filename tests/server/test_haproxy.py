"""Behind HAProxy, as security/haproxy.cfg sets it up: nginx's tests, over TCP and a Unix socket.

Needs haproxy on the machine (Debian: haproxy); without it these tests are skipped, loudly.
"""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from server.test_nginx import (  # noqa: F401 # The tests run here with the proxy of this file.
    Proxy,
    many_files,
    test_5000_slow_headers_and_bodies_never_reach_the_worker,
    test_a_body_beyond_the_limit_stops_at_the_proxy,
    test_a_client_that_leaves_ends_its_request,
    test_a_client_that_sends_byte_by_byte_is_served,
    test_a_half_closed_client_has_left,
    test_a_request_id_passes_through_the_proxy,
    test_answers_are_the_same_through_the_proxy,
    test_connections_to_the_worker_are_kept_and_reused,
    test_streams_are_not_held_back,
)
from server.worker import proxied, wait_for

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
CONFIG = Path(__file__).parents[2] / "security" / "haproxy.cfg"
TCP = "server worker1 127.0.0.1:8000 check"
UNIX = "# With --uds: server worker1 unix@/run/ingle/ingle.sock check"

pytestmark = pytest.mark.skipif(
    HAPROXY is None, reason="HAPROXY IS NOT INSTALLED: apt install haproxy"
)


class Haproxy(Proxy):
    """A running HAProxy in front of a worker; requests go through it."""

    def __init__(self, worker, folder):
        self.worker = worker
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = probe.getsockname()
        text = CONFIG.read_text()
        changes = [("bind :8080", "bind {}:{}".format(*self.address))]
        # Two descriptors each, of which a machine for tests has less than a proxy.
        changes.append(("    maxconn 20000\n", "    maxconn 6000\n"))
        if worker.uds:
            # The commented line takes the place of the other.
            changes += [(TCP, f"# {TCP}"), (UNIX, f"server worker1 unix@{worker.uds} check")]
        else:
            changes.append((TCP, "server worker1 {}:{} check".format(*worker.address)))
        # The test's folder is ours alone, and outside of any other root.
        for line in ("user haproxy", "group haproxy", "chroot /var/lib/haproxy"):
            changes.append((f"    {line}\n", ""))
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = Path(folder) / "haproxy.cfg"
        path.write_text(text)
        command = [HAPROXY, "-db", "-f", str(path)]
        subprocess.run([*command, "-c"], check=True, capture_output=True)
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(self._answers, 15, lambda: f"HAProxy does not start: {self.process.poll()}")

    def stop(self):
        self.process.kill()
        self.process.wait(10)


@pytest.fixture(scope="module", params=["tcp", "unix"])
def proxy(request, many_files, tmp_path_factory):  # noqa: F811
    with proxied(Haproxy, request.param, tmp_path_factory.mktemp("haproxy")) as made:
        yield made
