"""Starts `ingle serve demo`, asks it one question as any OpenAI client would, and keeps serving.

Only the standard library: this is also the shortest example of the wire format.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from ready import wait_until_ready

HOST, PORT = "127.0.0.1", int(os.environ.get("INGLE_DEMO_PORT", "8000"))
QUESTION = "What is a prime number?"


def ask(question: str) -> None:
    """Streams one answer to standard output, sampled as the model's defaults say."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 64,
        "stream": True,
    }
    connection = http.client.HTTPConnection(HOST, PORT, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"HTTP {response.status}: {response.read().decode()}")
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if not data or data == b"[DONE]":
            continue
        for choice in json.loads(data)["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)
    print()
    connection.close()


def main() -> int:
    """Runs the server, asks, waits for Ctrl-C."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, PORT)) == 0:
            # Its answer would pass for ours.
            sys.exit(f"port {PORT} is taken; set INGLE_DEMO_PORT to another one")
    ingle = Path(sys.executable).with_name("ingle")
    command = [str(ingle), "serve", "demo", "--host", HOST, "--port", str(PORT)]
    server = subprocess.Popen(command)
    try:
        wait_until_ready(server, PORT)
        print(f"\n> {QUESTION}", flush=True)
        ask(QUESTION)
        print(f"\nServing on http://{HOST}:{PORT}/v1 until Ctrl-C.", flush=True)
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
