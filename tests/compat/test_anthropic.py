"""Anthropic's official client: messages plain and streamed, tools, thinking, tokens, errors."""

import pytest

from server.test_structured import TOOLS, WHOLE

anthropic = pytest.importorskip("anthropic")
pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

MODEL = "llama-tied-bf16"
HELLO = [{"role": "user", "content": "Hello"}]
CLIENT_TOOLS = [
    {
        "name": tool["function"]["name"],
        "description": "Gets it.",
        "input_schema": tool["function"]["parameters"],
    }
    for tool in TOOLS
]


@pytest.fixture
def client(hermes):
    with anthropic.Anthropic(base_url=hermes.url, api_key="none", max_retries=0) as made:
        yield made
    hermes.wait_until_idle()


def fields(temperature=0, seed=1, ignore_eos=None, **more):
    # This version of the client has no parameters for sampling.
    extra = {"temperature": temperature, "seed": seed, "ignore_eos": ignore_eos}
    return {"model": MODEL, "max_tokens": 12, "messages": HELLO, "extra_body": extra} | more


def test_plain_and_streamed(hermes, client):
    expected = hermes.chat("Hello", max_tokens=12)["choices"][0]["message"]["content"]
    plain = client.messages.create(**fields())
    assert [(block.type, block.text) for block in plain.content] == [("text", expected)]
    assert (plain.stop_reason, plain.usage.output_tokens) == ("max_tokens", 12)
    assert plain._request_id.startswith("req_")
    with client.messages.stream(**fields()) as stream:
        assert "".join(stream.text_stream) == expected
        final = stream.get_final_message()
    assert final.content[0].text == expected
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)
    events = list(client.messages.create(**fields(), stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_a_stop_sequence_ends_the_message_before_it(client):
    text = client.messages.create(**fields()).content[0].text
    stopped = client.messages.create(**fields(stop_sequences=[text[4:6]]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[4:6])
    assert stopped.content[0].text == text[: text.index(text[4:6])]


def test_tools_round_trip(client):
    asked = fields(tools=CLIENT_TOOLS, max_tokens=WHOLE, temperature=1, seed=4)
    choice = {"type": "any", "disable_parallel_tool_use": True}
    plain = client.messages.create(**asked, tool_choice=choice)
    with client.messages.stream(**asked, tool_choice=choice) as stream:
        streamed = stream.get_final_message()
    [block], [same] = plain.content, streamed.content
    assert (plain.stop_reason, streamed.stop_reason) == ("tool_use", "tool_use")
    assert (block.name, block.input) == (same.name, same.input)
    assert block.input["city"] in ("Bonn", "Ulm")
    for answer in (plain, streamed):
        for content in (answer.content, [block.model_dump() for block in answer.content]):
            result = {"type": "tool_result", "tool_use_id": answer.content[0].id}
            history = [
                *HELLO,
                {"role": "assistant", "content": content},
                {"role": "user", "content": [result | {"content": "Rain."}]},
            ]
            again = client.messages.create(
                **fields(messages=history, tools=CLIENT_TOOLS, tool_choice={"type": "none"})
            )
            assert [block.type for block in again.content] == ["text"]


def test_thinking_comes_and_goes_back(client):
    thinking = {"type": "enabled", "budget_tokens": 1024}
    asked = fields(thinking=thinking, temperature=1, seed=2, ignore_eos=True)
    plain = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        deltas = [event.thinking for event in stream if event.type == "thinking"]
        streamed = stream.get_final_message()
    [block], [same] = plain.content, streamed.content
    assert block.type == same.type == "thinking"
    assert block.thinking == same.thinking == "".join(deltas)
    history = [*HELLO, {"role": "assistant", "content": streamed.content}, *HELLO]
    assert client.messages.create(**asked | {"messages": history}).content


def test_tokens_are_counted(client):
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    prompt = {"model": MODEL, "messages": HELLO, "system": system, "tools": CLIENT_TOOLS}
    counted = client.messages.count_tokens(**prompt).input_tokens
    usage = client.messages.create(**prompt, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_an_answer_fits_its_json_schema(client):
    schema = {
        "type": "object",
        "required": ["kind"],
        "additionalProperties": False,
        "properties": {"kind": {"enum": ["cat", "dog"]}},
    }
    form = {"format": {"type": "json_schema", "schema": schema}}
    answer = client.messages.create(**fields(output_config=form, max_tokens=WHOLE))
    assert answer.stop_reason == "end_turn"
    assert "kind" in answer.content[0].text


def test_errors_have_the_client_s_classes(client):
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**fields(temperature=3))
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**fields(model="other"))
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as caught:
        client.messages.create(**fields(messages=[{"role": "user", "content": "x " * 5000}]))
    assert caught.value.body["error"]["type"] == "invalid_request_error"


async def test_an_async_stream_gives_the_plain_text(hermes):
    async with anthropic.AsyncAnthropic(base_url=hermes.url, api_key="none") as client:
        plain = await client.messages.create(**fields())
        async with client.messages.stream(**fields()) as stream:
            text = "".join([part async for part in stream.text_stream])
    assert text == plain.content[0].text


def test_the_beta_route_answers(client):
    answer = client.beta.messages.create(**fields(), betas=["interleaved-thinking-2025-05-14"])
    assert answer.content[0].type == "text"
