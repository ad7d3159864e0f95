"""A model's chat templates over HTTP: chosen by name, by tools, from each place of the folder; and
what of a message reaches them."""

import json
import shutil
import subprocess
import sys

import pytest

import ingle
from server.worker import TINY, Worker

USER = {"role": "user", "content": "Hi", "name": "Ann"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALLS = "<tool_call>{{ tools[0].function.name }}"
TEMPLATES = {
    "default": "D {% if tools is iterable and tools | length > 0 %}T{% endif %}\r\n"
    "{% for m in messages %}\r\n"
    "  {{ m.role }}:{{ m.name }}:{{ m.tool_call_id }}\r\n{% endfor %}\r\n",
    "tool_use": "U " + CALLS,
}
RAG = "R\r\n{{ messages[0].content }}"


@pytest.fixture(scope="module")
def named_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named") / "model"
    shutil.copytree(TINY, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": name, "template": template} for name, template in TEMPLATES.items()
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/rag.jinja").write_bytes(RAG.encode())
    return folder


@pytest.fixture(scope="module")
def named(named_folder):
    with Worker("--device", "cpu", model=named_folder) as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


def prompt_of(worker, *messages, **fields):
    reply = worker.post("/tokenize", {"messages": list(messages)} | fields)
    assert reply.status == 200, reply.body
    return worker.post("/detokenize", {"tokens": reply.json["tokens"]}).json["prompt"]


def test_the_usual_template_is_taken_and_sees_the_fields_of_messages(named):
    tool = {"role": "tool", "content": "x", "name": "f", "tool_call_id": "c1"}
    function = {"role": "function", "content": "x", "name": "g"}
    text = prompt_of(named, USER, tool, function)
    assert text == "D   user:Ann:\n  tool:f:c1\n  tool:g:\n"


def test_tools_take_their_template(named):
    assert prompt_of(named, USER, tools=[TOOL]) == "U <tool_call>f"
    body = {"messages": [USER], "tools": [TOOL], "max_tokens": 2, "return_token_ids": True}
    answer = named.post("/v1/chat/completions", body).json
    tokens = named.post("/tokenize", {"messages": [USER], "tools": [TOOL]}).json["tokens"]
    assert answer["prompt_token_ids"] == tokens


def test_a_request_names_its_template(named):
    assert prompt_of(named, USER, chat_template_name="rag") == "R\nHi"
    assert prompt_of(named, USER, chat_template_name="default", tools=[TOOL]).startswith("D T")
    for path in ("/tokenize", "/v1/chat/completions"):
        reply = named.post(path, {"messages": [USER], "chat_template_name": "rug"})
        assert reply.status == 400
        assert reply.error["param"] == "chat_template_name"
        assert "default, rag, tool_use" in reply.error["message"]


ASKED = {
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
}


@pytest.mark.parametrize("path", ASKED)
def test_every_api_of_chats_names_a_template(named, path):
    def num_tokens(**fields):
        reply = named.post(path, ASKED[path] | fields)
        assert reply.status == 200, reply.body
        usage = reply.json.get("usage", reply.json)
        cached = usage.get("cache_read_input_tokens", 0)
        return cached + usage.get("prompt_tokens", usage.get("input_tokens"))

    lengths = {
        name: named.post("/tokenize", {"messages": [USER], "chat_template_name": name}).json[
            "count"
        ]
        for name in ("rag", "default")
    }
    assert num_tokens(chat_template_name="rag") == lengths["rag"] != lengths["default"]
    assert num_tokens(chat_template_name=None) == num_tokens() != lengths["rag"]
    reply = named.post(path, ASKED[path] | {"chat_template_name": "rug"})
    assert reply.status == 400
    assert "chat_template_name" in reply.json["error"]["message"]
    assert "default, rag, tool_use" in reply.json["error"]["message"]


def test_the_python_api_and_the_command_name_a_template(named_folder):
    chat = [{"role": "user", "content": "Hi"}]
    with ingle.Engine(str(named_folder), device="cpu") as engine:
        ids = engine.tokenize(chat, chat_template_name="rag")
        assert engine.detokenize(ids) == "R\nHi"
        params = ingle.SamplingParams(max_tokens=1)
        [output] = engine.generate(chat, params, chat_template_name="rag")
        assert output.usage.prompt_tokens == len(ids) != len(engine.tokenize(chat))
        with pytest.raises(ingle.RefusedError) as caught:
            engine.generate(chat, params, chat_template_name="rug")
        assert caught.value.param == "chat_template_name"
    command = [sys.executable, "-m", "ingle", "chat", str(named_folder), "--device", "cpu"]
    for name, is_known in (("rag", True), ("rug", False)):
        flags = ["--chat-template-name", name, "--max-tokens", "2"]
        done = subprocess.run([*command, *flags], input=b"Hi\n", capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert (b"default, rag, tool_use" in done.stderr) != is_known


def test_a_template_with_crlf_in_the_folder_is_that_of_the_setting(named, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    (folder / "chat_template.jinja").write_bytes(TEMPLATES["default"].encode())
    with Worker("--device", "cpu", model=folder) as worker:
        assert prompt_of(worker, USER) == "D   user:Ann:\n" == prompt_of(named, USER)
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()
