"""The official client, synchronous and asynchronous, chat and completions, plain and streamed."""

import openai
import pytest


@pytest.fixture(params=["cpu", "sim"])
def worker(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def client(worker):
    with openai.OpenAI(base_url=worker.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(worker):
    url = worker.url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made


MODEL = "llama-tied-bf16"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
TEXT = {"model": MODEL, "prompt": "The quick brown", "temperature": 0}


def test_chat_plain_and_streamed(client):
    plain = client.chat.completions.create(**CHAT, max_completion_tokens=12)
    assert plain.object == "chat.completion"
    assert plain.model == MODEL
    [choice] = plain.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert plain.usage.completion_tokens == 12
    assert plain.usage.total_tokens == plain.usage.prompt_tokens + 12
    options = {"include_usage": True}
    with client.chat.completions.create(
        **CHAT, max_tokens=12, stream=True, stream_options=options
    ) as stream:
        chunks = list(stream)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    # The prefix is cached by now.
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert all(getattr(chunks[-1].usage, key) == getattr(plain.usage, key) for key in counts)
    assert chunks[-1].choices == []


def test_completion_plain_and_streamed(client):
    plain = client.completions.create(**TEXT)
    assert plain.object == "text_completion"
    assert plain.usage.completion_tokens == 16, "the default of max_tokens is 16"
    with client.completions.create(**TEXT, stream=True) as stream:
        text = "".join(chunk.choices[0].text for chunk in stream)
    assert text == plain.choices[0].text


def entries_of(logprobs):
    """The entries of a choice, each checked for its types."""
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        for shown in (entry, *entry.top_logprobs):
            assert isinstance(shown.token, str)
            assert isinstance(shown.logprob, float)
            assert shown.logprob <= 0
            assert isinstance(shown.bytes, list)
            assert shown.bytes
            assert all(isinstance(byte, int) and 0 <= byte < 256 for byte in shown.bytes)
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.logprob == values[0], "greedy: the token itself is the likeliest"
    return logprobs.content


def test_streamed_log_probs_of_a_chat_equal_the_plain_ones(client):
    fields = CHAT | {"max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    [choice] = client.chat.completions.create(**fields).choices
    plain = entries_of(choice.logprobs)
    assert len(plain) == 6
    text = b"".join(bytes(entry.bytes) for entry in plain).decode("utf-8", "replace")
    assert text == choice.message.content
    streamed = []
    with client.chat.completions.create(**fields, stream=True) as stream:
        for chunk in stream:
            if chunk.choices[0].logprobs:
                streamed += entries_of(chunk.choices[0].logprobs)
    assert streamed == plain


def test_models_are_listed_and_found_by_name(client):
    [model] = client.models.list()
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")


def test_errors_have_the_client_classes(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT, n=0)
    assert (caught.value.param, caught.value.code) == ("n", "invalid_value")
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**(CHAT | {"model": "x"}))
    assert caught.value.code == "model_not_found"


async def test_an_async_chat_streams_the_plain_text(async_client):
    answer = await async_client.chat.completions.create(**CHAT, max_tokens=12)
    stream = await async_client.chat.completions.create(**CHAT, max_tokens=12, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == answer.choices[0].message.content


async def test_an_async_completion_streams_each_choice(async_client):
    answer = await async_client.completions.create(**TEXT, n=2, seed=1, max_tokens=6)
    stream = await async_client.completions.create(**TEXT, n=2, seed=1, max_tokens=6, stream=True)
    texts = ["", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in answer.choices]


def test_replayed_answer_can_be_sent_back(client):
    answer = client.chat.completions.create(**CHAT, max_tokens=4)
    history = [*CHAT["messages"], answer.choices[0].message.model_dump()]
    history.append({"role": "user", "content": "And?"})
    client.chat.completions.create(**(CHAT | {"messages": history}), max_tokens=4)
