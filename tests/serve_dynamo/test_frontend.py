"""The worker behind Dynamo's own frontend: discovery by files, no etcd and no NATS.

Skipped without `ai-dynamo`. Its dependency `aisimulate` is a placeholder that downloads from
NVIDIA's index, so: `pip install --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1`, then
`pip install pydantic pyyaml psutil uvicorn fastapi prometheus-client pytest` and ingle.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("dynamo.frontend")

import ingle

MODEL = str(Path(__file__).parents[1] / "golden/models/llama-tied-bf16")
NAME = "llama-tied-bf16"
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def frontend(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamo")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = os.environ | {"DYN_FILE_KV": str(folder / "kv")}
    (folder / "kv").mkdir()
    place = ("--discovery-backend", "file")
    commands = [
        ("dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), *place),
        ("ingle.integrations.dynamo", MODEL, "--device", "cpu", "--max-model-len", "256", *place),
    ]
    with contextlib.ExitStack() as stack:
        for command in commands:
            log = stack.enter_context(open(folder / f"{command[0]}.log", "w"))
            process = subprocess.Popen(
                [sys.executable, "-m", *command], env=environment, stdout=log, stderr=log
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        base = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + LIMIT_S
        while NAME not in models(base):
            assert time.monotonic() < deadline, [path.read_text() for path in folder.glob("*.log")]
            time.sleep(0.2)
        yield base


def models(base):
    try:
        return [each["id"] for each in json.loads(ask(base + "/v1/models"))["data"]]
    except OSError:
        return []


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return answer.read()


def test_a_completion_is_the_python_api_s(frontend):
    ids = [5, 6, 7, 8, 9]
    body = {"model": NAME, "prompt": ids, "max_tokens": 8, "temperature": 0}
    answer = json.loads(ask(frontend + "/v1/completions", body))
    with ingle.Engine(MODEL, device="cpu", max_model_len=256) as engine:
        params = ingle.SamplingParams(max_tokens=8, temperature=0)
        [own] = engine.generate([ids], params)
    [choice] = answer["choices"]
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == len(own.outputs[0].token_ids)
    assert readable(choice["text"]) == readable(own.outputs[0].text)
    assert choice["finish_reason"] == own.outputs[0].finish_reason


def readable(text):
    """Without what two detokenizers show of broken UTF-8: this model writes random bytes."""
    return text.replace("\ufffd", "")


def test_a_chat_streams_to_its_end(frontend):
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": NAME, "messages": messages, "max_tokens": 4, "temperature": 0, "stream": True}
    events = ask(frontend + "/v1/chat/completions", body).decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    reasons = [
        json.loads(event.removeprefix("data: "))["choices"][0]["finish_reason"]
        for event in events[:-1]
        if event.startswith("data: {")
    ]
    assert reasons[-1] == "length"


def test_a_request_that_the_worker_refuses_gets_an_error(frontend):
    body = {"model": NAME, "prompt": "word " * 400, "max_tokens": 8}
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(frontend + "/v1/completions", body)
    assert refused.value.code >= 400
