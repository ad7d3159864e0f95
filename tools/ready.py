"""Waits for a server that a tool has just started."""

import http.client
import subprocess
import sys
import time


def wait_until_ready(
    process: subprocess.Popen[bytes],
    port: int,
    path: str = "/ready",
    limit_s: float = 120.0,
    hint: str = "",
) -> None:
    """Returns once GET `path` answers 200; exits with `hint` if the server ends or takes longer."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"the server ended with exit code {process.returncode}{hint}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass  # Not listening yet.
        finally:
            connection.close()
        time.sleep(0.05)
    sys.exit(f"the server was not ready after {limit_s:.0f} s{hint}")
