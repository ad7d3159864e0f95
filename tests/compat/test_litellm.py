"""litellm: chat, stream, tools, JSON schema, log-probs, embeddings, completions, errors."""

import json

import pytest

from server.test_structured import FORMAT, TOOLS, WHOLE, assert_call, assert_fits

litellm = pytest.importorskip("litellm")
pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

MODEL = "openai/llama-tied-bf16"
MESSAGES = [{"role": "user", "content": "Hello"}]


def options(worker, **fields):
    return {
        "model": MODEL,
        "api_base": worker.url + "/v1",
        "api_key": "none",
        "max_retries": 0,
        **fields,
    }


def test_chat_plain_and_streamed(cpu):
    fields = options(cpu, messages=MESSAGES, temperature=0, max_tokens=12)
    plain = litellm.completion(**fields)
    assert plain.choices[0].finish_reason == "length"
    assert plain.usage.completion_tokens == 12
    chunks = list(litellm.completion(**fields, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content == whole_text(cpu)
    rebuilt = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert rebuilt.usage.total_tokens == plain.usage.total_tokens


def whole_text(worker, max_tokens=12):
    return worker.chat("Hello", max_tokens=max_tokens)["choices"][0]["message"]["content"]


def test_each_token_has_its_alternatives(cpu):
    fields = options(cpu, messages=MESSAGES, temperature=0, max_tokens=3)
    answer = litellm.completion(**fields, logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 3
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_an_answer_fits_its_json_schema(cpu):
    fields = options(cpu, messages=MESSAGES, temperature=1, seed=2, max_tokens=WHOLE)
    assert_fits(litellm.completion(**fields, response_format=FORMAT).choices[0].message.content)


def test_a_streamed_tool_call_equals_the_plain_one(hermes):
    fields = options(hermes, messages=MESSAGES, tools=TOOLS, tool_choice="required", seed=4)
    fields |= {"max_tokens": WHOLE, "parallel_tool_calls": False}
    answer = litellm.completion(**fields).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert_call(answer.message.tool_calls[0].model_dump())
    chunks = list(litellm.completion(**fields, stream=True))
    rebuilt = litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message
    expected = json.loads(answer.message.tool_calls[0].function.arguments)
    assert json.loads(rebuilt.tool_calls[0].function.arguments) == expected
    history = [*MESSAGES, answer.message.model_dump()]
    history.append(
        {"role": "tool", "tool_call_id": answer.message.tool_calls[0].id, "content": "Rain."}
    )
    fields |= {"messages": history, "tool_choice": "none", "max_tokens": 3}
    fields["temperature"] = 0
    assert litellm.completion(**fields).choices[0].message.content


def test_vectors_equal_the_server_s_own(cpu):
    answer = litellm.embedding(**options(cpu, input=["a b", "c"]))
    direct = cpu.post("/v1/embeddings", {"input": ["a b", "c"]}).json
    assert [item["embedding"] for item in answer.data] == [
        pytest.approx(item["embedding"], abs=1e-6) for item in direct["data"]
    ]


def test_a_completion_has_the_server_s_text(cpu):
    fields = options(cpu, prompt="The quick", temperature=0, max_tokens=8)
    fields["model"] = "text-completion-openai/llama-tied-bf16"
    expected = cpu.complete()["choices"][0]["text"]
    assert litellm.text_completion(**fields).choices[0].text == expected


def test_a_response_has_the_server_s_text(cpu):
    # litellm raises a limit below OpenAI's least, 16.
    fields = options(cpu, input="Hello", temperature=0, max_output_tokens=16)
    answer = litellm.responses(**fields)
    assert answer.output[0].content[0].text == whole_text(cpu, 16)
    events = list(litellm.responses(**fields, stream=True))
    assert str(events[-1].type.value).startswith("response.")


def test_errors_have_the_client_classes(cpu):
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**options(cpu, messages=MESSAGES, n=0))
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(
            **options(cpu, messages=[{"role": "user", "content": "x " * 5000}], max_tokens=1)
        )


async def test_an_async_stream_gives_the_plain_text(cpu):
    fields = options(cpu, messages=MESSAGES, temperature=0, max_tokens=12)
    plain = await litellm.acompletion(**fields)
    stream = await litellm.acompletion(**fields, stream=True)
    text = "".join([c.choices[0].delta.content or "" async for c in stream])
    assert text == plain.choices[0].message.content


def test_answers_can_be_sent_back(hermes):
    fields = options(hermes, messages=MESSAGES, tools=TOOLS, max_tokens=WHOLE, seed=3)
    fields["parallel_tool_calls"] = False
    chunks = list(litellm.completion(**fields, tool_choice="required", stream=True))
    called = litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": "Rain."}
        for call in called.tool_calls
    ]
    for sent in (called, called.model_dump(), called.json()):
        history = [*MESSAGES, sent, *results]
        plain = litellm.completion(**fields | {"messages": history}, tool_choice="none")
        history += [plain.choices[0].message, *MESSAGES]
        answer = litellm.completion(**fields | {"messages": history}, tool_choice="none")
        assert answer.choices[0].finish_reason


def test_messages_of_anthropic_stream_the_plain_text(hermes):
    fields = options(hermes, model="anthropic/llama-tied-bf16", api_base=hermes.url, temperature=0)
    fields |= {"messages": MESSAGES, "max_tokens": 12}
    plain = litellm.completion(**fields)
    assert plain.choices[0].message.content == whole_text(hermes)
    assert plain.choices[0].finish_reason == "length"
    chunks = list(litellm.completion(**fields, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == plain.choices[0].message.content
    fields |= {"tools": TOOLS, "tool_choice": "required", "max_tokens": WHOLE, "temperature": 1}
    called = litellm.completion(**fields, parallel_tool_calls=False).choices[0].message
    assert_call(called.tool_calls[0].model_dump())
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "Rain."}
    fields |= {"messages": [*MESSAGES, called, result], "tool_choice": "none", "max_tokens": 3}
    fields["temperature"] = 0
    assert litellm.completion(**fields).choices[0].message.content
