"""The real model: SmolLM2-135M-Instruct as `ingle serve demo`, on the CPU."""

import http.client
import json

import openai
import pytest

from ingle.demo import SAMPLING_DEFAULTS, demo_model_path
from ingle.errors import ModelError
from server.worker import Worker, joined, whole

try:
    demo_model_path()
except ModelError as error:
    pytest.skip(str(error), allow_module_level=True)

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def demo():
    with Worker("--device", "cpu", "--max-model-len", "512", model="demo") as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


def test_demo_names_paris(demo):
    assert demo.summary.startswith("model       demo (llama")
    client = openai.OpenAI(base_url=demo.url + "/v1", api_key="none", max_retries=0)
    with (
        client,
        client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=24,
            stream=True,
        ) as stream,
    ):
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "Paris" in text


def test_plain_and_streamed_agree_on_a_real_text(demo):
    fields = {"max_tokens": 32}
    plain = demo.chat("Count from one to ten in words, and greet me: 🙂 Grüße!", **fields)
    events = demo.chat(
        "Count from one to ten in words, and greet me: 🙂 Grüße!", stream=True, **fields
    )
    assert joined(events) == whole(plain)


def test_chat_ends_by_itself(demo):
    answer = demo.chat("Say hi.", max_tokens=200)
    text, [reason] = whole(answer)[0]
    assert reason == "stop"
    assert "<|im_end|>" not in text


def test_demo_samples_as_its_authors_recommend_unless_asked_otherwise(demo):
    assert "temperature 0.2, " in demo.summary
    assert "top_p 0.9, " in demo.summary
    [card] = demo.get("/v1/models").json["data"]
    shown = card["default_sampling_params"]
    assert shown == pytest.approx(shown | SAMPLING_DEFAULTS)

    def text(**fields):
        fields = {"seed": 5, "max_tokens": 24, "temperature": None} | fields
        return whole(demo.chat("Tell me a story.", **fields))[0][0]

    assert text() == text(**SAMPLING_DEFAULTS)
    assert text(temperature=2, top_p=1) != text(), "a request's own values win"


def test_answer_of_the_plainest_client(demo):
    # What tools/demo.py does: the standard library and nothing else.
    connection = http.client.HTTPConnection(*demo.address, timeout=60)
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 16}
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = json.loads(connection.getresponse().read())
    assert "Paris" in answer["choices"][0]["message"]["content"]
    connection.close()
