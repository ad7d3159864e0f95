"""Messages and templates, plain and streamed.

The tiny model's template is ChatML; others stand here, each as strict as one of those in the wild.
"""

import json
import shutil
import time

import pytest

from server.reciter import Recital
from server.twice import both, refused_twice
from server.worker import TINY, Worker, whole, with_templates

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}
TURN = "<|im_start|>{}\n{}<|im_end|>\n"
OPEN = "<|im_start|>assistant\n"


def prompt_of(worker, *messages, **fields):
    """What the template made of the messages, after asking for an answer both ways.

    A generation must have the tokens that /tokenize returns.
    """
    reply = worker.post("/tokenize", {"messages": list(messages)} | fields)
    assert reply.status == 200, reply.body
    tokens = reply.json["tokens"]
    answer = both(worker.chat, list(messages), max_tokens=2, return_token_ids=True, **fields)
    assert answer["prompt_token_ids"] == tokens
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    return worker.post("/detokenize", {"tokens": tokens}).json["prompt"]


def refused(worker, *messages, **fields):
    return refused_twice(worker, CHAT, messages=list(messages), **fields)


@pytest.fixture(scope="module")
def templated(tmp_path_factory):
    """Makes a server of the tiny model with another template; all end with the module."""
    with with_templates(lambda: tmp_path_factory.mktemp("template"), "cpu") as start:
        yield start


NOTHING = [{"content": ""}, {}, {"content": None}, {"content": []}]


@pytest.mark.parametrize("content", NOTHING)
def test_an_assistants_content_may_be_empty_or_missing(cpu, content):
    text = prompt_of(cpu, USER, {"role": "assistant"} | content, USER)
    turns = [TURN.format("user", "Hi"), TURN.format("assistant", ""), TURN.format("user", "Hi")]
    assert text == "".join(turns) + OPEN


@pytest.mark.parametrize("role", ["user", "system", "tool", "developer"])
def test_content_of_other_roles_may_be_empty_but_not_missing(cpu, role):
    name = "system" if role == "developer" else role
    for content in ({"content": ""}, {"content": []}):
        assert prompt_of(cpu, {"role": role} | content) == TURN.format(name, "") + OPEN
    for content in ({}, {"content": None}):
        assert refused(cpu, USER, {"role": role} | content)["param"] == "messages[1].content"


@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_text_parts_are_joined_by_line_feeds(cpu, role):
    parts = [{"type": "text", "text": text} for text in ("one", "zwö", "", "three")]
    text = prompt_of(cpu, {"role": role, "content": parts}, USER)
    assert text == TURN.format(role, "one\nzwö\n\nthree") + TURN.format("user", "Hi") + OPEN
    assert prompt_of(cpu, {"role": role, "content": parts[:1]}) == TURN.format(role, "one") + OPEN
    for bad, place in (
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}, ""),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, ""),
        ({"type": None}, ".type"),
    ):
        error = refused(cpu, {"role": role, "content": [parts[0], bad]})
        assert error["param"] == "messages[0].content[1]" + place, bad
    for bad in ({"type": "text"}, {"type": "text", "text": 5}, {"type": "text", "text": None}):
        error = refused(cpu, {"role": role, "content": [bad]})
        assert error["param"] == "messages[0].content[0].text", bad


CALLS = "{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{}{{% endfor %}}{{% endfor %}}"
ARGUMENTS = {
    "dumps": "{{ c.function.arguments | tojson }}",
    "iterates": "{% for k, v in c.function.arguments.items() %}[{{ k }}={{ v }}]{% endfor %}",
    "prints": "{{ c.function.arguments }}",
    "adds": "{{ '[' + c.function.arguments + ']' }}",
    "asks": "{% if c.function.arguments is string %}{{ c.function.arguments }}"
    "{% else %}{{ c.function.arguments | tojson }}{% endif %}",
}


@pytest.fixture(scope="module")
def calls(templated):
    """One server per way to write arguments; the way is the answer's `how`, a template variable."""
    branches = "".join(
        "{% if how == '" + how + "' %}" + CALLS.format(text) + "{% endif %}"
        for how, text in ARGUMENTS.items()
    )
    return templated("{{ tools }}" + branches + "<tool_call>")


def written(calls, how, given):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    assistant = {"role": "assistant", "content": "", "tool_calls": [call]}
    text = prompt_of(calls, USER, assistant, chat_template_kwargs={"how": how})
    return text.removesuffix("<tool_call>").removeprefix("none").removeprefix("None")


MAPPING = {"city": "Oslo", "days": 2, "deep": {"a": ["ö", None, True]}}


@pytest.mark.parametrize("given", [MAPPING, json.dumps(MAPPING), json.dumps(MAPPING, indent=2)])
def test_tool_arguments_are_a_mapping_that_is_decoded_once(calls, given):
    for how in ("dumps", "asks"):
        assert json.loads(written(calls, how, given)) == MAPPING
    assert written(calls, "iterates", given).startswith("[city=Oslo][days=2][deep=")


@pytest.mark.parametrize("given", [MAPPING, json.dumps(MAPPING)], ids=["object", "text"])
def test_tool_arguments_are_printed_as_transformers_prints_them(calls, given):
    """A template that wants JSON says `tojson`; without it Jinja2 prints a dict as Python does."""
    assert written(calls, "prints", given) == str(MAPPING)


@pytest.mark.parametrize("given", [MAPPING, json.dumps(MAPPING)], ids=["object", "text"])
def test_a_template_may_add_tool_arguments_to_text(calls, given):
    """Either JSON comes out or the template's mistake is named; never a 500."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    body = {"messages": messages, "chat_template_kwargs": {"how": "adds"}}
    if calls.post("/tokenize", body).status == 400:
        error = refused(calls, *messages, chat_template_kwargs={"how": "adds"})
        assert "template" in error["message"]
    else:
        assert json.loads(written(calls, "adds", given)) == [MAPPING]


@pytest.mark.parametrize("given", ['{"city": "Os', "not JSON", '"text"', "[1]", "", "{}{}"])
def test_tool_arguments_that_are_no_mapping_stay_text(calls, given):
    assert json.loads(written(calls, "dumps", given)) == given
    for how in ("prints", "asks"):
        assert written(calls, how, given) == given
    assert written(calls, "adds", given) == f"[{given}]"


@pytest.mark.parametrize("given", [5, [1], True])
def test_tool_arguments_of_another_type_are_refused(calls, given):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    error = refused(calls, USER, {"role": "assistant", "tool_calls": [call]})
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CITIES = {"\1": "Köln", "\2": "Köln", "\3": 'a "b" \\ c'}
HERMES = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{{ messages[-1].content }}"


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    """A model that calls a tool: arguments as an object, as JSON text, and as text in a text."""
    recital = Recital()
    for cue, arguments in {
        "\1": {"city": CITIES["\1"]},
        "\2": json.dumps({"city": CITIES["\2"]}),
        "\3": json.dumps({"city": CITIES["\3"]}),
    }.items():
        call = json.dumps({"name": "weather", "arguments": arguments}, ensure_ascii=False)
        recital.add(cue, f"Now{ord(cue)}: <tool_call>\n{call}\n</tool_call>")
    folder = recital.save(tmp_path_factory.mktemp("caller"), HERMES)
    with Worker("--device", "cpu", model=folder) as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


@pytest.mark.parametrize(("cue", "city"), CITIES.items(), ids=["object", "text", "escapes"])
def test_arguments_of_called_tools_decode_in_one_step(caller, cue, city):
    answer = both(caller.chat, cue, tools=TOOLS, max_tokens=200)
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": city}
    assert choice["message"]["content"].strip() == f"Now{ord(cue)}:"


STRICT = (
    "{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if m['role'] == 'tool' and (loop.first or not messages[loop.index0 - 1].tool_calls) %}"
    "{{ raise_exception('Tool without a call') }}{% endif %}"
    "{% if m['role'] != 'tool' and loop.index0 % 2 != (0 if m['role'] == 'user' else 1) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ bos_token if loop.first }}{{ m['role'] + m['content'] }}"
    "{% endfor %}"
)


@pytest.fixture(scope="module")
def strict(templated):
    return templated(STRICT)


def test_a_templates_own_refusal_is_400(strict):
    system = {"role": "system", "content": "x"}
    tool = {"role": "tool", "content": "42", "tool_call_id": "1"}
    for messages, words in {
        (0, 2): "System role not supported",
        (2, 2): "Roles must alternate",
        (1,): "Tool without a call",
        (1, 2): "Tool without a call",
        (2, 1): "Tool without a call",
    }.items():
        error = refused(strict, *((system, tool, USER)[i] for i in messages))
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
    developer = {"role": "developer", "content": "x"}
    assert "System role" in refused(strict, developer, USER)["message"]
    assert prompt_of(strict, USER).endswith("userHi")


def test_a_template_that_takes_any_order_gets_it(cpu):
    tool = {"role": "tool", "content": "42", "tool_call_id": "1"}
    text = TURN.format("tool", "42") + TURN.format("user", "Hi") + OPEN
    assert prompt_of(cpu, tool, USER) == text


@pytest.mark.parametrize("role", ["robot", None, 5, "", "User", ["user"], {}])
def test_unknown_roles_are_refused_by_name(cpu, role):
    assert refused(cpu, {"role": role, "content": "x"})["param"] == "messages[0].role"
    assert refused(cpu, USER, {"role": role, "content": "x"})["param"] == "messages[1].role"


def test_every_known_role_reaches_the_template(cpu):
    for role in ("system", "developer", "user", "assistant", "tool"):
        shown_as = "system" if role == "developer" else role
        text = prompt_of(cpu, {"role": role, "content": "x"}, USER)
        assert text == TURN.format(shown_as, "x") + TURN.format("user", "Hi") + OPEN
    assert refused(cpu, {"content": "x"})["param"] == "messages[0].role"


@pytest.mark.parametrize("messages", [[], {}, None, "x", [None], [5], [[]], ["x"]])
def test_messages_of_the_wrong_type_are_refused_by_name(cpu, messages):
    assert refused_twice(cpu, CHAT, messages=messages)["param"].startswith("messages")


def test_a_prompt_has_one_start_token(cpu, strict):
    """Whether the tokenizer, the template or the text itself has it."""
    bos = 0

    def tokens(worker, **body):
        ids = worker.post("/tokenize", body).json["tokens"]
        if "prompt" in body:
            answer = both(worker.complete, max_tokens=1, return_token_ids=True, **body)
            assert answer["choices"][0]["prompt_token_ids"] == ids
            assert answer["usage"]["prompt_tokens"] == len(ids)
        return ids

    assert prompt_of(strict, USER) == "<|bos|>userHi"
    assert tokens(strict, messages=[USER]).count(bos) == 1
    assert tokens(cpu, messages=[USER]).count(bos) == 0, "ChatML has none"
    hi = tokens(cpu, prompt="Hi", add_special_tokens=False)
    assert bos not in hi
    assert tokens(cpu, prompt="Hi") == [bos, *hi]
    # Ids are used as they are.
    answer = both(cpu.complete, [bos, bos, *hi], max_tokens=1, return_token_ids=True)
    assert answer["choices"][0]["prompt_token_ids"] == [bos, bos, *hi]


@pytest.mark.parametrize("add", [True, False, None])
def test_text_that_begins_with_the_start_token_gets_no_second(cpu, add):
    """A template pasted into a completion: its markers are the tokens that they name."""
    hi = cpu.post("/tokenize", {"prompt": "Hi", "add_special_tokens": False}).json["tokens"]
    body = {"prompt": "<|bos|>Hi", "add_special_tokens": add}
    assert cpu.post("/tokenize", body).json["tokens"] == [0, *hi]
    answer = both(cpu.complete, max_tokens=1, return_token_ids=True, **body)
    assert answer["choices"][0]["prompt_token_ids"] == [0, *hi]


HALF = {"role": "assistant", "content": "The answer is"}


@pytest.mark.parametrize(
    ("flags", "end"),
    [
        ({}, "The answer is<|im_end|>\n" + OPEN),
        ({"add_generation_prompt": True}, "The answer is<|im_end|>\n" + OPEN),
        ({"add_generation_prompt": False}, "The answer is<|im_end|>\n"),
        (
            {"add_generation_prompt": False, "continue_final_message": False},
            "The answer is<|im_end|>\n",
        ),
        (
            {"add_generation_prompt": True, "continue_final_message": False},
            "The answer is<|im_end|>\n" + OPEN,
        ),
        ({"add_generation_prompt": False, "continue_final_message": True}, "The answer is"),
        ({"continue_final_message": True}, "The answer is"),
    ],
)
def test_add_generation_prompt_and_continue_final_message_end_the_prompt(cpu, flags, end):
    text = prompt_of(cpu, USER, HALF, **flags)
    assert text == TURN.format("user", "Hi") + OPEN + end
    # What the model is asked is what a completion of that text is asked; twice, from the cache too.
    tokens = cpu.post("/tokenize", {"messages": [USER, HALF]} | flags).json["tokens"]
    expected = whole(both(cpu.complete, tokens))
    for _ in range(2):
        assert whole(both(cpu.chat, [USER, HALF], **flags)) == expected


def test_add_generation_prompt_and_continue_final_message_exclude_each_other(cpu):
    flags = {"continue_final_message": True, "add_generation_prompt": True}
    assert refused(cpu, USER, HALF, **flags)["param"] == "continue_final_message"
    assert refused(cpu, USER, HALF, echo=True, continue_final_message=True)["param"] == "echo"
    for name in flags:
        assert refused(cpu, USER, HALF, **{name: "yes"})["param"] == name


KWARGS = (
    "{% for i in range(times or 0) %}{{ what }}{% endfor %}{{ what }}|{{ messages[0].content }}|"
    "{{ enable_thinking }}"
)


def test_template_variables_reach_the_template_alone(templated, cpu):
    worker = templated(KWARGS)
    text = prompt_of(worker, USER, chat_template_kwargs={"enable_thinking": False, "what": "w"})
    assert text.lower() == "w|hi|false"
    nested = {"enable_thinking": {"a": [1]}, "what": 1.5}
    assert prompt_of(worker, USER, chat_template_kwargs=nested).startswith("1.5|Hi|")
    for name in (
        "tokenize", "messages", "chat_template", "tools", "add_generation_prompt", "bos_token",
        "eos_token", "continue_final_message", "tokenizer",
    ):  # fmt: skip
        for value in (1, None, []):
            error = refused(cpu, USER, chat_template_kwargs={name: value})
            assert error["param"] == f"chat_template_kwargs.{name}"
    for value in ([], "x", 5):
        error = refused(cpu, USER, chat_template_kwargs=value)
        assert error["param"] == "chat_template_kwargs"
    # A budget of steps, and one of bytes.
    for variables in ({"times": 10**9, "what": ""}, {"times": 10**5, "what": "x" * 10_000}):
        began = time.monotonic()
        error = refused(worker, USER, chat_template_kwargs=variables)
        assert "template" in error["message"]
        assert time.monotonic() - began < 10


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model without a template."""
    folder = tmp_path_factory.mktemp("base") / "model"
    shutil.copytree(TINY, folder)
    config = folder / "tokenizer_config.json"
    values = json.loads(config.read_text())
    del values["chat_template"]
    config.write_text(json.dumps(values))
    with Worker("--device", "cpu", model=folder) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


def test_a_model_without_a_template_refuses_chats(base):
    error = refused(base, USER)
    assert "--chat-template" in error["message"]
    assert error["type"] == "invalid_request_error"
    reply = base.post("/tokenize", {"messages": [USER]})
    assert reply.status == 400
    assert "--chat-template" in reply.error["message"]
    assert "no chat template" in base.summary
    both(base.complete)
