"""langchain-openai: chat, stream, tools, structured output, log-probs, embeddings, responses."""

import pytest

from server.test_structured import SCHEMA, TOOLS, WHOLE

langchain_openai = pytest.importorskip("langchain_openai")
messages = pytest.importorskip("langchain_core.messages")
pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

MODEL = "llama-tied-bf16"


def chat(worker, **fields):
    return langchain_openai.ChatOpenAI(
        model=MODEL,
        base_url=worker.url + "/v1",
        api_key="none",
        max_retries=0,
        **({"temperature": 0, "max_tokens": 12} | fields),
    )


def expected_text(worker):
    return worker.chat("Hello", max_tokens=12)["choices"][0]["message"]["content"]


def test_chat_plain_and_streamed(cpu):
    model = chat(cpu)
    plain = model.invoke("Hello")
    assert plain.content == expected_text(cpu)
    assert plain.usage_metadata["output_tokens"] == 12
    chunks = list(model.stream("Hello", stream_usage=True))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == plain.content
    assert whole.usage_metadata["total_tokens"] == plain.usage_metadata["total_tokens"]


def test_each_token_has_its_alternatives(cpu):
    answer = chat(cpu, max_tokens=3, logprobs=True, top_logprobs=2).invoke("Hello")
    entries = answer.response_metadata["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2, 2]


def test_structured_output_fits_its_schema(cpu):
    model = chat(cpu, temperature=1, seed=2, max_tokens=WHOLE)
    schema = {"title": "animal", "description": "An animal.", **SCHEMA}
    value = model.with_structured_output(schema, method="json_schema").invoke("An animal?")
    assert list(value) == ["name", "age", "kind", "tags"]


def test_a_tool_is_called_and_its_result_read(hermes):
    model = chat(hermes, max_tokens=WHOLE, seed=4, temperature=1)
    bound = model.bind_tools(TOOLS, tool_choice="required", parallel_tool_calls=False)
    answer = bound.invoke("Weather?")
    [call] = answer.tool_calls
    assert call["name"] in ("weather", "news")
    assert call["args"]["city"] in ("Bonn", "Ulm")
    tool = {"role": "tool", "tool_call_id": call["id"], "content": "Rain."}
    again = chat(hermes, max_tokens=3).bind_tools(TOOLS, tool_choice="none")
    assert again.invoke([("user", "Weather?"), answer, tool]).content


def test_vectors_equal_the_server_s_own(cpu):
    client = langchain_openai.OpenAIEmbeddings(
        model=MODEL, base_url=cpu.url + "/v1", api_key="none", check_embedding_ctx_length=False
    )
    vectors = client.embed_documents(["a b", "c"])
    direct = cpu.post("/v1/embeddings", {"input": ["a b", "c"]}).json["data"]
    assert vectors == [pytest.approx(item["embedding"], abs=1e-6) for item in direct]
    assert client.embed_query("c") == pytest.approx(vectors[1], abs=1e-6)


def test_a_completion_has_the_server_s_text(cpu):
    client = langchain_openai.OpenAI(
        model=MODEL, base_url=cpu.url + "/v1", api_key="none", temperature=0, max_tokens=8
    )
    assert client.invoke("The quick") == cpu.complete()["choices"][0]["text"]


def test_a_streamed_response_has_the_plain_text(cpu):
    model = chat(cpu, use_responses_api=True, store=False)
    answer = model.invoke("Hello")
    assert answer.text == expected_text(cpu)
    text = "".join(chunk.text for chunk in model.stream("Hello"))
    assert text == answer.text


@pytest.mark.parametrize("version", ["v0", "v1", "responses/v1"])
@pytest.mark.parametrize("is_response", [False, True])
def test_answers_can_be_sent_back(hermes, is_response, version):
    fields = {"use_responses_api": is_response, "output_version": version, "temperature": 1}
    asked = messages.HumanMessage("Hello")
    # One call, which no limit cuts; and answers that do not begin with their end.
    fields["extra_body"] = {"seed": 3, "ignore_eos": True}
    model = chat(hermes, max_tokens=WHOLE, **fields | {"extra_body": {"seed": 3}})
    bound = model.bind_tools(TOOLS, tool_choice="required", parallel_tool_calls=False)
    called = bound.invoke([asked])
    assert called.tool_calls
    results = [messages.ToolMessage("Rain.", tool_call_id=call["id"]) for call in called.tool_calls]
    model = chat(hermes, max_tokens=20, **fields)
    history = [asked, called, *results]
    plain = model.invoke(history)
    chunks = list(model.stream([*history, plain, asked]))
    streamed = sum(chunks[1:], chunks[0])
    assert model.invoke([*history, plain, asked, streamed, asked]).content
