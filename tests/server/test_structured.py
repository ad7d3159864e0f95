"""Structured output on models whose random weights know no JSON."""

import json
import threading
import time

import openai
import pytest

from server.worker import TINY, Worker, joined, whole

MODEL = "llama-tied-bf16"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog/puppy"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
WHOLE = 800
"""Tokens that hold any answer to the schemas and tools here, were each character a token of its own
and all white space as long as it may be: no test hangs on what a model draws."""
FORMAT = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}


def assert_fits(text):
    value = json.loads(text)
    assert list(value) == ["name", "age", "kind", "tags"], text
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 8, text
    assert 0 <= value["age"] <= 150, text
    assert value["kind"] in ("cat", "dog/puppy"), text
    assert len(value["tags"]) <= 2, text
    assert all(isinstance(tag, bool) for tag in value["tags"]), text


def refused(worker, path="/v1/chat/completions", **fields):
    body = {"max_tokens": 5} | fields
    if path == "/v1/chat/completions":
        body["messages"] = [{"role": "user", "content": "x"}]
    started = time.monotonic()
    reply = worker.post(path, body)
    assert time.monotonic() - started < 10
    assert reply.status == 400, reply.body
    return reply.error


@pytest.mark.parametrize("worker", ["cpu", "sim"])
def test_json_fits_the_schema_for_any_seed(request, worker):
    worker = request.getfixturevalue(worker)
    for seed in range(6):
        fields = {"temperature": 1, "seed": seed, "n": 4, "max_tokens": WHOLE}
        answer = worker.chat(**fields, response_format=FORMAT)
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "stop", choice
            assert_fits(choice["message"]["content"])


def test_streamed_json_is_the_same_json(cpu):
    fields = {"temperature": 1, "seed": 3, "max_tokens": WHOLE, "response_format": FORMAT}
    plain = cpu.chat(**fields)
    assert joined(cpu.chat(**fields, stream=True)) == whole(plain)
    usage = cpu.chat(**fields, stream=True, stream_options={"include_usage": True})[-1]["usage"]
    assert usage == plain["usage"]


def test_an_answer_fits_its_choice_regex_or_grammar(cpu):
    for seed in range(5):
        fields = {"temperature": 1, "seed": seed, "max_tokens": 100}
        text = cpu.complete(**fields, guided_choice=["yes", "no, never"])["choices"][0]["text"]
        assert text in ("yes", "no, never")
        text = cpu.complete(**fields, guided_regex=r"[ab]{3}-\d{2}")["choices"][0]["text"]
        assert len(text) == 6
        assert text[4:].isdigit()
        lark = 'start: term ("+" term)~1..2\nterm: /[0-9]{1,2}/'
        terms = cpu.complete(**fields, guided_grammar=lark)["choices"][0]["text"].split("+")
        assert 2 <= len(terms) <= 3
        assert all(term.isdigit() for term in terms)
        fields["max_tokens"] = WHOLE
        answer = cpu.complete(**fields, structured_outputs={"json": SCHEMA})
        assert_fits(answer["choices"][0]["text"])


def test_json_object_never_fills_up_with_white_space(cpu):
    for seed in range(4):
        answer = cpu.chat(
            temperature=1, seed=seed, max_tokens=200, response_format={"type": "json_object"}
        )
        text = answer["choices"][0]["message"]["content"]
        assert text.startswith("{")
        assert " " * 42 not in text
        assert "\n\n" not in text.replace("\\n", "")
        if answer["choices"][0]["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)


def test_refusals_of_schemas_name_the_place(cpu):
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    message = refused(cpu, guided_json=schema)["message"]
    assert message.startswith("guided_json: properties.x.uniqueItems: true cannot be enforced")
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    assert "properties.x.uniqueItems" in refused(cpu, response_format=form)["message"]
    assert "tools" in refused(cpu, tools=[tool])["message"]
    schema["properties"]["x"]["uniqueItems"] = False
    schema |= {"propertyNames": {"type": "string"}, "unevaluatedProperties": False}
    schema |= {"additionalProperties": False, "if": {}, "dependentRequired": {}}
    cpu.complete(guided_json=schema, max_tokens=2)


def test_an_answer_of_json_ends_with_its_last_brace(cpu):
    for seed in range(4):
        answer = cpu.complete(
            temperature=1, seed=seed, guided_json=SCHEMA, max_tokens=WHOLE, return_token_ids=True
        )
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["text"].endswith("}")
        assert 1 not in choice["token_ids"], "no token for the end"


def test_json_strings_may_have_escapes(cpu):
    schema = {"type": "object", "properties": {"a": {"const": 'q"\\/\n'}}, "required": ["a"]}
    schema["additionalProperties"] = False
    text = cpu.complete(guided_json=schema, max_tokens=100)["choices"][0]["text"]
    assert json.loads(text) == {"a": 'q"\\/\n'}


def test_alone_and_beside_others_the_same_json(cpu):
    fields = {"response_format": FORMAT, "temperature": 1, "seed": 9, "max_tokens": WHOLE}
    alone = whole(cpu.complete(**fields))
    results = []

    def ask(i):
        more = fields if i % 2 else {"temperature": 1, "seed": i, "max_tokens": 80}
        results.append((i, whole(cpu.complete(**more))))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer for i, answer in results if i % 2] == [alone] * 5


def test_preemption_changes_no_answer():
    schema = json.loads(json.dumps(SCHEMA))
    schema["properties"]["name"] = {"type": "string", "minLength": 60, "maxLength": 80}
    format_ = {"type": "json_schema", "json_schema": {"name": "long", "schema": schema}}

    def answers(*arguments):
        results = {}

        def ask(i):
            fields = {"temperature": 1, "seed": i, "max_tokens": 150, "response_format": format_}
            results[i] = whole(worker.complete(f"prompt {i}", **fields))

        with Worker("--device", "cpu", "--max-num-seqs", "8", *arguments) as worker:
            threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return results, worker.metric("vllm:num_preemptions_total")

    undisturbed, none = answers()
    # 16 blocks of 16 tokens for eight answers of a hundred and more.
    disturbed, some = answers("--kv-cache-memory-bytes", 262144)
    assert none == 0 < some
    assert disturbed == undisturbed
    assert len(disturbed) == 8


def test_what_has_no_meaning_under_a_grammar_is_refused(cpu):
    for field in ({"ignore_eos": True}, {"min_tokens": 3}, {"allowed_token_ids": [40]}):
        error = refused(cpu, **field, response_format={"type": "json_object"})
        assert error["param"] == next(iter(field))


def test_the_official_client_parses_a_model(cpu):
    with openai.OpenAI(base_url=cpu.url + "/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            response_format=FORMAT,
            max_completion_tokens=WHOLE,
            seed=1,
        )
        assert_fits(answer.choices[0].message.content)


# Tools and reasoning: templates that name them.

HERMES = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}\nAnswer with <tool_call>{...}"
    "</tool_call>.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
THINKING = HERMES + "<think>\n{% if not thinking %}\n</think>\n\n{% endif %}"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Gets it.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"enum": ["Bonn", "Ulm"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "news")
]


@pytest.fixture(scope="module")
def hermes(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "thinking.jinja"
    path.write_text(THINKING)
    arguments = ("--device", "cpu", "--max-num-seqs", "8", "--chat-template", path)
    with Worker(*arguments, model=TINY) as worker:
        yield worker
        assert worker.stop() == 0, worker.errors()


def assert_call(call, name=None):
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert name is None or call["function"]["name"] == name
    assert call["function"]["name"] in ("weather", "news")
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["city"] in ("Bonn", "Ulm")
    assert 1 <= arguments["days"] <= 9


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "news"}}])
def test_forced_calls_are_valid_for_any_seed(hermes, choice):
    for seed in range(6):
        answer = hermes.chat(
            tools=TOOLS, tool_choice=choice, temperature=1, seed=seed, max_tokens=WHOLE,
            parallel_tool_calls=False,
        )  # fmt: skip
        choice_ = answer["choices"][0]
        assert choice_["finish_reason"] == "tool_calls"
        assert choice_["message"]["content"] is None
        assert len(choice_["message"]["tool_calls"]) == 1
        assert_call(choice_["message"]["tool_calls"][0], None if choice == "required" else "news")


def test_streamed_calls_and_the_way_back_with_the_official_client(hermes):
    with openai.OpenAI(base_url=hermes.url + "/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "Weather?"}]
        fields = {"model": MODEL, "tools": TOOLS, "seed": 4, "max_completion_tokens": WHOLE}
        fields |= {"tool_choice": "required", "parallel_tool_calls": False}
        with client.chat.completions.stream(messages=messages, **fields) as stream:
            streamed = stream.get_final_completion().choices[0]
        plain = client.chat.completions.create(messages=messages, **fields).choices[0]
        assert streamed.finish_reason == plain.finish_reason == "tool_calls"
        call, same = streamed.message.tool_calls[0], plain.message.tool_calls[0]
        assert call.function.name == same.function.name
        assert call.function.arguments == same.function.arguments
        assert_call(plain.message.tool_calls[0].model_dump())
        messages.append(plain.message.model_dump())
        messages.append({"role": "tool", "tool_call_id": same.id, "content": "Rain."})
        again = client.chat.completions.create(
            model=MODEL, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=3
        )
        assert again.choices[0].message.tool_calls is None


def test_none_keeps_the_tools_out_of_the_prompt(hermes):
    fields = {"temperature": 0, "max_tokens": 3}
    plain = hermes.chat(**fields)["usage"]["prompt_tokens"]
    none = hermes.chat(**fields, tools=TOOLS, tool_choice="none")["usage"]["prompt_tokens"]
    auto = hermes.chat(**fields, tools=TOOLS)["usage"]["prompt_tokens"]
    assert plain == none < auto
    tokens = hermes.post(
        "/tokenize", {"messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS}
    ).json["count"]
    assert tokens == auto


def test_tools_need_a_template_that_has_a_place_for_them(cpu):
    assert refused(cpu, tools=TOOLS)["param"] == "tools"
    assert refused(cpu, tool_choice="required")["param"] == "tool_choice"


def test_reasoning_comes_under_its_own_name(hermes):
    fields = {"temperature": 1, "seed": 2, "max_tokens": 12, "ignore_eos": True}
    opened = hermes.chat(**fields, chat_template_kwargs={"thinking": True})["choices"][0]
    assert opened["message"]["reasoning_content"]
    assert opened["message"]["content"] is None
    events = hermes.chat(**fields, chat_template_kwargs={"thinking": True}, stream=True)
    deltas = [event["choices"][0]["delta"] for event in events]
    text = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert text == opened["message"]["reasoning_content"]
    assert all("content" not in delta for delta in deltas)
    closed = hermes.chat(**fields)["choices"][0]["message"]
    assert closed["content"]
    assert "reasoning_content" not in closed


def test_a_grammar_leaves_reasoning_free(hermes):
    answer = hermes.chat(
        guided_choice=["yes", "no"], max_tokens=30, temperature=1, seed=1,
        chat_template_kwargs={"thinking": True},
    )["choices"][0]  # fmt: skip
    assert answer["finish_reason"] == "length"
    assert answer["message"]["reasoning_content"]
    direct = hermes.chat(guided_choice=["yes", "no"], max_tokens=30, temperature=1, seed=1)
    assert direct["choices"][0]["message"]["content"] in ("yes", "no")
