"""ingle.Engine on the real core: generate, stream, abort, from threads and loops."""

import asyncio
import concurrent.futures
import json
import re
import shutil

import pytest
from aiohttp.test_utils import TestClient, TestServer

import ingle
from ingle.fields import PLAIN
from ingle.server import create_app
from server.worker import MODELS, TINY, wait_for

GREEDY = ingle.SamplingParams(temperature=0, max_tokens=12)
LONG = ingle.SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True)
LIMIT_S = 30.0
# Beyond the range of each field, where the core takes a document that nobody has checked.
BEYOND = {
    "n": {"n": 129},
    "priority": {"priority": 2**31},
    "logprobs": {"sampling": {"logprobs": 21}},
    "stop": {"stop": ["a"] * 65},
    "stop_token_ids": {"stop_token_ids": [5] * 129},
    "logit_bias": {"sampling": {"logit_bias": {"5": 101}}},
    **{name: {"sampling": {name: field.most + 1}} for name, field in PLAIN.items()},
}


@pytest.fixture(scope="module")
def engine():
    with ingle.Engine(str(TINY), device="cpu", max_num_seqs=8, max_queue=8) as made:
        yield made


@pytest.fixture(scope="module")
def slow():
    with ingle.Engine(str(TINY), device="sim") as made:
        yield made


def is_idle(engine):
    return json.loads(engine.core.health())["in_system"] == 0


async def until_idle(engine):
    await asyncio.to_thread(wait_for, lambda: is_idle(engine), LIMIT_S, lambda: "still busy")


def test_generate_one_and_many(engine):
    one = engine.generate("The quick", GREEDY)[0]
    assert len(one.outputs[0].token_ids) == 12
    assert one.outputs[0].finish_reason == "length"
    assert one.usage.completion_tokens == 12
    # Four times what the engine holds at once: the call feeds it.
    many = engine.generate(["The quick"] * 64, GREEDY)
    assert [output.outputs[0].text for output in many] == [one.outputs[0].text] * 64
    ids = engine.tokenize("The quick")
    assert engine.generate(ids, GREEDY)[0].outputs[0].text == one.outputs[0].text


def test_generate_n_and_logprobs(engine):
    params = ingle.SamplingParams(n=3, seed=1, max_tokens=5, logprobs=2)
    output = engine.generate("x", params)[0]
    assert len({completion.text for completion in output.outputs}) == 3
    for completion in output.outputs:
        assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
        assert all(len(entry.top) == 2 for entry in completion.logprobs)


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Ulm"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_answers_can_be_bound(engine):
    def said(**fields):
        params = ingle.SamplingParams(seed=3, temperature=1, max_tokens=200, **fields)
        return engine.generate("x", params)[0].outputs[0].text

    assert json.loads(said(guided_json=SCHEMA))["city"] in ("Bonn", "Ulm")
    assert json.loads(said(guided_json=json.dumps(SCHEMA)))["city"] in ("Bonn", "Ulm")
    assert said(guided_choice=["yes", "no"]) in ("yes", "no")
    assert re.fullmatch(r"[ab]{3}-\d", said(guided_regex=r"[ab]{3}-\d"))
    assert re.fullmatch("x+y", said(guided_grammar='start: /x+/ "y"'))
    assert not set("etaoin") & set(said(bad_words=list("etaoin")))
    with pytest.raises(ingle.RefusedError) as refused:
        said(guided_json={"type": "strng"})
    assert refused.value.param == "guided_json"
    with pytest.raises(ingle.RefusedError) as refused:
        said(guided_choice=["a"], ignore_eos=True)
    assert refused.value.param == "ignore_eos"


async def test_a_bound_answer_is_streamed_from_a_running_loop(engine):
    params = ingle.SamplingParams(seed=3, max_tokens=200, guided_json=SCHEMA)
    messages = [{"role": "user", "content": "Where?"}]
    text = "".join([delta.text async for delta in engine.stream(messages, params)])
    assert json.loads(text)["city"] in ("Bonn", "Ulm")


def test_chat_and_tokens(engine):
    messages = [{"role": "user", "content": "Hi"}]
    assert engine.generate(messages, GREEDY)[0].outputs[0].token_ids
    ids = engine.tokenize("abc 🙂", add_special_tokens=False)
    assert engine.detokenize(ids) == "abc 🙂"


def test_a_refused_request_names_its_field_and_the_engine_serves_on(engine):
    with pytest.raises(ingle.RefusedError) as caught:
        engine.generate("x", ingle.SamplingParams(n=0))
    assert caught.value.param == "n"
    with pytest.raises(ingle.RefusedError):
        engine.generate(["x", [999_999]], GREEDY)
    assert engine.generate("x", GREEDY)[0].outputs[0].token_ids


async def test_stream_equals_generate(engine):
    plain = engine.generate("The quick", GREEDY)[0]
    deltas = [delta async for delta in engine.stream("The quick", GREEDY)]
    assert "".join(delta.text for delta in deltas) == plain.outputs[0].text
    assert [i for delta in deltas for i in delta.token_ids] == plain.outputs[0].token_ids
    assert deltas[-1].finish_reason == "length"
    assert deltas[-1].usage.completion_tokens == 12


async def test_many_streams_at_once(engine):
    async def text(number):
        deltas = engine.stream(f"prompt {number}", GREEDY)
        return "".join([delta.text async for delta in deltas])

    texts = await asyncio.gather(*(text(i) for i in range(8)))
    assert texts == [engine.generate(f"prompt {i}", GREEDY)[0].outputs[0].text for i in range(8)]


async def test_leaving_and_cancelling_a_stream_frees_it(slow):
    async for _ in slow.stream("x", LONG):
        break
    await until_idle(slow)

    async def consume():
        async for _ in slow.stream("x", LONG):
            pass

    task = asyncio.create_task(consume())
    await asyncio.to_thread(wait_for, lambda: not is_idle(slow), LIMIT_S, lambda: "still idle")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(slow)


async def test_abort_ends_a_stream(slow):
    reasons = []
    async for delta in slow.stream("x", LONG):
        reasons.append(delta.finish_reason)
        slow.abort(delta.request_id)
    assert reasons[-1] == "abort"
    await until_idle(slow)
    slow.abort(123_456_789)


def test_threads_share_an_engine(engine):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: engine.generate("x", GREEDY)[0].outputs[0].text, range(32)))
    assert len(set(texts)) == 1


async def test_own_front_end_beside_the_python_api(engine):
    plain = engine.generate("The quick", GREEDY)[0].outputs[0].text
    body = {"prompt": "The quick", "temperature": 0, "max_tokens": 12}
    async with TestClient(TestServer(create_app(engine))) as client:
        answer = await (await client.post("/v1/completions", json=body)).json()
        assert answer["choices"][0]["text"] == plain
        # The loop watches the engine now; calls from it, beside it and from threads still work.
        assert engine.generate("The quick", GREEDY)[0].outputs[0].text == plain
        deltas = [delta.text async for delta in engine.stream("The quick", GREEDY)]
        assert "".join(deltas) == plain
        output = await asyncio.to_thread(engine.generate, "The quick", GREEDY)
        assert output[0].outputs[0].text == plain
        refused = await client.post("/v1/completions", json={"prompt": "x", "n": 0})
        assert (await refused.json())["error"]["param"] == "n"
    assert engine.generate("The quick", GREEDY)[0].outputs[0].text == plain


def test_closed_engine_refuses():
    engine = ingle.Engine(str(TINY), device="cpu")
    engine.close()
    engine.close()
    with pytest.raises(ingle.FatalError):
        engine.generate("x", GREEDY)


def test_bad_models_and_options(tmp_path):
    with pytest.raises(ingle.ModelError, match="no-such-model"):
        ingle.Engine(str(tmp_path / "no-such-model"), device="cpu")
    with pytest.raises(ingle.ModelError, match="device"):
        ingle.Engine(str(TINY), device="abacus")
    with pytest.raises(ingle.ModelError):
        ingle.Engine(str(TINY), device="cpu", max_model_len=1 << 30)


def test_every_tiny_architecture_answers():
    for folder in sorted(MODELS.iterdir()):
        with ingle.Engine(str(folder), device="cpu") as engine:
            output = engine.generate("The quick brown fox", GREEDY)[0].outputs[0]
            assert len(output.token_ids) == 12 or output.finish_reason == "stop", folder.name


@pytest.mark.parametrize("name", BEYOND)
def test_the_core_refuses_in_the_same_words_as_the_front_end(engine, name):
    document = {"prompts": [{"token_ids": [5]}], "output": {"format": "delta"}} | BEYOND[name]
    with pytest.raises(ingle.RefusedError) as caught:
        engine.core.submit(json.dumps(document).encode())
    by_core = caught.value
    fields = document.get("sampling", document)
    value = {5: 101} if name == "logit_bias" else fields[name]
    if name in PLAIN and PLAIN[name].is_whole:
        value = int(value)
    with pytest.raises(ingle.RefusedError) as caught:
        ingle.SamplingParams(**{name: value})
    assert caught.value.param == by_core.param == name
    # A token id is a key in JSON, and so a text.
    by_core = by_core.message.replace('"5"', "5").removesuffix(".0")
    assert by_core == caught.value.message.removesuffix(".0")


def test_an_id_outside_the_vocabulary_is_named_by_its_place(engine):
    size = engine.info["vocab_size"]
    with pytest.raises(ingle.RefusedError) as caught:
        engine.generate([[5, 6, size + 2]], GREEDY)
    expected = f"prompt[2]: token id {size + 2} is outside the vocabulary of {size}"
    assert (caught.value.message, caught.value.param) == (expected, "prompt[2]")
    with pytest.raises(ingle.RefusedError, match=rf"token_ids\[1\]: token id {size} is outside"):
        engine.detokenize([5, size])


def test_a_load_error_does_not_quote_the_whole_file(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    document = {"version": "1.0", "model": {"type": "x" * 100_000}}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(ingle.ModelError, match=r"tokenizer\.json: model type") as caught:
        ingle.Engine(str(folder), device="sim")
    assert len(str(caught.value)) < 700
