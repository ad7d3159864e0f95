"""`--hardening strict` and `--user`: a server that misses nothing, started by root."""

import json
import os
import platform
import pwd
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from server.worker import TINY, Worker, wait_for

LESSER = Path(__file__).with_name("lesser_kernel.py")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Strict(Worker):
    """A server whose log goes to a pipe, so that nothing is missing."""

    def __init__(self, *arguments, kernel=()):
        command = [*kernel, *self.command(TINY), *arguments]
        self.process = subprocess.Popen(
            [*map(str, command), "--device", "cpu", "--user", "nobody", "--hardening", "strict"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=False,
        )
        self.summary = ""
        self.summary = self._read_summary()
        found = re.search(r"^address +http://(\S+):(\d+)", self.summary, re.M)
        self.address, self.uds = (found[1], int(found[2])), None

    def errors(self):
        return self.summary

    def __exit__(self, *_):
        self.close()


@pytest.fixture
def nobody():
    """The user, if this machine can serve as it: it must be able to reach the model."""
    user = pwd.getpwnam("nobody")
    for folder in TINY.parents:
        if not folder.stat().st_mode & 0o001:
            pytest.skip(f"nobody may not pass {folder}")
    return user


@pytest.fixture
def open_folder():
    """A folder that other users may pass, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="ingle-test-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def test_strict_starts_as_another_user_with_nothing_missing(nobody):
    with Strict() as worker:
        assert "hardening   strict: layers in force: 14\n" in worker.summary
        assert worker.health()["hardening"]["missing"] == {}
        assert worker.complete()["choices"][0]["finish_reason"] == "length"
        status = Path(f"/proc/{worker.process.pid}/status").read_text()
        for name, number in (("Uid", nobody.pw_uid), ("Gid", nobody.pw_gid)):
            assert f"{name}:" + f"\t{number}" * 4 + "\n" in status
        assert re.search(r"^Groups:\s*$", status, re.M)
        limits = Path(f"/proc/{worker.process.pid}/limits").read_text()
        for limit in ("Max core file size", "Max file size"):
            assert re.search(rf"^{limit} +0 +0 ", limits, re.M), limit
        files = re.search(r"^Max open files +(\d+) +(\d+) ", limits, re.M)
        assert files[1] == files[2], "the limit cannot be raised"
        assert worker.stop() == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
def test_a_process_without_capabilities_needs_no_call_to_drop_them(nobody):
    with Strict(kernel=[sys.executable, LESSER, "capset"]) as worker:
        assert worker.health()["hardening"]["missing"] == {}
        assert worker.stop() == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
def test_strict_starts_as_another_user_in_a_namespace(nobody):
    doctor = subprocess.run(
        [sys.executable, "-m", "ingle", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if json.loads(doctor.stdout)["hardening"]["namespaces"] is not True:
        pytest.skip("this machine gives users no namespaces")
    with Strict(kernel=[sys.executable, LESSER, "landlock"]) as worker:
        assert worker.health()["hardening"]["missing"] == {}
        assert worker.health()["hardening"]["on"]["files"] == "a namespace"
        assert worker.complete()["choices"][0]["finish_reason"] == "length"
        assert worker.stop() == 0


def test_the_other_user_reads_its_own_key_file(nobody, open_folder):
    path = open_folder / "keys"
    path.write_text("tenant:first\n")
    path.chmod(0o600)
    os.chown(path, nobody.pw_uid, nobody.pw_gid)

    def status(key):
        return worker.get("/v1/models", headers={"X-Api-Key": key}).status

    with Strict("--api-key-file", path) as worker:
        assert (status("first"), status("second")) == (200, 401)
        path.write_text("tenant:second\n")
        worker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: status("second") == 200, 10, worker.errors)
        assert worker.stop() == 0


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--user", "no-such-user"], "--user: "),
        (["--user", "root"], "--user: root is root"),
        (["--user", "nobody", "--hardening", "off"], "--user: changes nothing"),
    ],
)
def test_a_user_that_cannot_be_meant_is_refused(flags, error):
    command = [sys.executable, "-m", "ingle", "serve", str(TINY), "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert error in done.stderr
