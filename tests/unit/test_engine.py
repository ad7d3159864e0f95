import asyncio
import gc

import pytest

from ingle import _core, engine
from ingle.engine import Delta, Engine, Usage
from ingle.errors import FailedError, OverloadedError, RefusedError
from ingle.sampling import SamplingParams

LIMIT_S = 10.0


@pytest.fixture
def fake(core, monkeypatch):
    """An Engine whose core is the fake one."""
    monkeypatch.setattr(engine._core, "Engine", lambda options, sockets, *shared: core)
    with Engine("m", max_num_seqs=4) as made:
        yield made
    assert core.is_shut_down


def test_generate_keeps_the_order_of_prompts(core, fake):
    core.on_submit = lambda key, request: core.answer(
        key, texts=(request["prompts"][0]["text"], "!")
    )
    outputs = fake.generate(["x", "y"], SamplingParams(max_tokens=2))
    assert [output.outputs[0].text for output in outputs] == ["x!", "y!"]
    assert outputs[0].outputs[0].token_ids == [0, 1]
    assert outputs[0].outputs[0].finish_reason == "stop"
    assert outputs[0].usage == Usage(3, 0, 2)
    assert core.requests[1]["max_tokens"] == 2
    assert core.requests[1]["output"] == {
        "format": "delta",
        "stream": True,
        "return_token_ids": True,
    }


def test_generate_takes_parameters_for_each_prompt(core, fake):
    core.on_submit = lambda key, request: core.answer(key)
    params = [SamplingParams(max_tokens=3), SamplingParams(n=2, max_tokens=5)]
    outputs = fake.generate(["p", "q"], params)
    assert [len(output.outputs) for output in outputs] == [1, 2]
    assert [request["max_tokens"] for request in core.requests.values()] == [3, 5]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([SamplingParams()], "must have one entry per prompt, got 1 for 2"),
        ({"max_tokens": 3}, "not dict"),
        ([{"max_tokens": 3}, SamplingParams()], "not dict"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(fake, params, message):
    with pytest.raises(RefusedError, match=message):
        fake.generate(["p", "q"], params)


def test_generate_feeds_a_small_queue(core, fake):
    running = set()
    most = 0

    def submit(key, request):
        nonlocal most
        if len(running) == 2:
            raise OverloadedError("full", 1)
        running.add(key)
        most = max(most, len(running))
        if len(running) == 2:
            finish()

    def finish():
        for key in list(running):
            running.discard(key)
            core.answer(key, texts=(str(key),))

    core.on_submit = submit
    outputs = fake.generate(["p"] * 6)
    assert len(outputs) == 6
    assert most == 2


def test_generate_raises_and_aborts_the_rest(core, fake):
    def submit(key, request):
        if key == 2:
            core.push(key, _core.ERROR, b'{"error":{"message":"not finite"},"status":500}')

    core.on_submit = submit
    with pytest.raises(FailedError, match="not finite"):
        fake.generate(["a", "b", "c"])
    assert set(core.aborted) >= {1, 3}


def test_overloaded_with_nothing_of_ours_running_is_raised(core, fake):
    def refuse(key, request):
        raise OverloadedError("full", 1)

    core.on_submit = refuse
    with pytest.raises(OverloadedError):
        fake.generate("p")


async def test_generate_works_inside_the_loop_that_watches(core, fake):
    fake.dispatcher.use_loop(asyncio.get_running_loop(), lambda reason: None)
    core.on_submit = lambda key, request: core.answer(key)
    assert fake.generate("p")[0].outputs[0].text == "ab"


async def test_stream_yields_deltas_and_usage_with_the_last(core, fake):
    core.on_submit = lambda key, request: core.answer(key)
    deltas = [delta async for delta in fake.stream("p")]
    assert deltas == [
        Delta(1, 0, "a", [0]),
        Delta(1, 0, "b", [1], finish_reason="stop", usage=Usage(3, 0, 2)),
    ]


async def test_leaving_a_stream_aborts_it(core, fake):
    core.on_submit = lambda key, request: core.push(
        key, _core.DELTA, (0, "a", [1], None, None, None)
    )
    async for _ in fake.stream("p"):
        break
    gc.collect()
    for _ in range(10):
        await asyncio.sleep(0)
    assert core.aborted == [1]


async def test_abort_ends_a_stream_with_its_reason(core, fake):
    core.on_submit = lambda key, request: core.push(
        key, _core.DELTA, (0, "a", [1], None, None, None)
    )
    deltas = []
    async for delta in fake.stream("p"):
        deltas.append(delta)
        if delta.finish_reason is None:
            fake.abort(delta.request_id)
    assert [delta.finish_reason for delta in deltas] == [None, "abort"]


async def test_error_in_a_stream_is_raised(core, fake):
    core.on_submit = lambda key, request: core.push(
        key, _core.ERROR, b'{"error":{"message":"bad","param":"n","code":"c"},"status":400}'
    )
    with pytest.raises(RefusedError, match="bad") as caught:
        async for _ in fake.stream("p"):
            pass
    assert (caught.value.param, caught.value.code) == ("n", "c")


async def test_long_prompt_is_submitted_off_the_loop(core, fake):
    import threading

    threads = []

    def submit(key, request):
        threads.append(threading.current_thread())
        core.answer(key)

    core.on_submit = submit
    text = "".join([d.text async for d in fake.stream("x" * 100_000)])
    assert text == "ab"
    assert threads != [threading.main_thread()]


def test_a_prompt_is_text_ids_or_messages(core, fake):
    core.on_submit = lambda key, request: core.answer(key)
    fake.generate([1, 2])
    fake.generate([{"role": "user", "content": "hi"}])
    fake.generate(["a", [3]])
    assert [request["prompts"] for request in core.requests.values()] == [
        [{"token_ids": [1, 2]}],
        [{"chat": {"messages": [{"role": "user", "content": "hi"}]}}],
        [{"text": "a"}],
        [{"token_ids": [3]}],
    ]
    with pytest.raises(RefusedError, match="prompt"):
        fake.generate([[1, "x"]])


def test_options_of_the_server_are_refused():
    for name in ("port", "nonsense"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            Engine("m", **{name: 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_cannot_carry_are_refused(fake, value):
    with pytest.raises(RefusedError, match="temperature"):
        fake.generate("p", SamplingParams(temperature=value))
    with pytest.raises(RefusedError, match="logit_bias"):
        fake.generate("p", SamplingParams(logit_bias={1: value}))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1j, "messages[0].extra: a value of type complex has no form in JSON"),
        (b"x", "messages[0].extra: a value of type bytes has no form in JSON"),
        ({(1, 2): 3}, "messages[0].extra: a key must be a string, not a list"),
        ([2**64], "messages[0].extra[0]: must be a whole number of at most 64 bits, not {given}"),
        ({"a": float("nan")}, "messages[0].extra.a: must be a finite number, not nan"),
    ],
)
def test_what_json_cannot_carry_is_refused_in_our_words(core, fake, value, message):
    with pytest.raises(RefusedError) as caught:
        fake.generate([{"role": "user", "content": "x", "extra": value}])
    assert str(caught.value) == message.format(given=2**64)
    nested = []
    nested.append(nested)
    with pytest.raises(RefusedError, match="nested too deeply or contains itself"):
        fake.generate([{"role": "user", "content": "x", "extra": nested}])
    assert core.requests == {}


def test_text_parts_of_a_message_are_joined(core, fake):
    core.on_submit = lambda key, request: core.answer(key)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    fake.generate([{"role": "user", "content": parts, "name": "n"}])
    [request] = core.requests.values()
    messages = request["prompts"][0]["chat"]["messages"]
    assert messages == [{"role": "user", "content": "a\nb", "name": "n"}]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"type": "image_url", "image_url": {"url": "x"}},
            "this model takes text only; messages[0].content[1] is an image",
        ),
        (
            {"type": "text", "text": 5},
            'messages[0].content[1]: must be a text part, as {"type": "text", "text": "x"}',
        ),
        ("x", 'messages[0].content[1]: must be a text part, as {"type": "text", "text": "x"}'),
    ],
)
def test_parts_that_are_no_text_are_refused(core, fake, part, message):
    with pytest.raises(RefusedError) as caught:
        fake.generate([{"role": "user", "content": [{"type": "text", "text": "a"}, part]}])
    assert caught.value.message == message
    assert core.requests == {}


@pytest.mark.parametrize("prompts", [5, None, {"role": "user", "content": "x"}])
def test_what_is_no_prompt_is_named(fake, prompts):
    with pytest.raises(RefusedError, match=r"^prompts: "):
        fake.generate(prompts)


def test_loop_closed_with_a_stream_open_aborts_it(core, fake, caplog):
    core.on_submit = lambda key, request: core.push(
        key, _core.DELTA, (0, "a", [1], None, None, None)
    )

    async def first(stream):
        return await anext(stream)

    loop = asyncio.new_event_loop()
    streams = [fake.stream("x"), fake.stream("y")]
    for stream in streams:
        loop.run_until_complete(first(stream))
    loop.close()
    core.push(1, _core.DELTA, (0, "b", [2], None, None, None))
    core.on_submit = lambda key, request: core.answer(key)
    assert fake.generate("z")[0].outputs[0].text == "ab"
    assert core.aborted == [1]
    fake.close()
    assert core.aborted == [1, 2]
    assert core.is_shut_down
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        ("ab\ud800", "prompt"),
        ([{"role": "user", "content": "ab\udcff"}], "messages[0].content"),
        ([{"role": "user", "content": "x", "ab\udcff": 1}], "messages[0]"),
    ],
)
def test_half_a_character_is_refused_by_its_place(core, fake, prompt, place):
    with pytest.raises(RefusedError) as caught:
        fake.generate(prompt)
    assert caught.value.param == place
    assert caught.value.message.startswith(f"{place}: character 2 is half of a surrogate pair")
    assert core.requests == {}


@pytest.mark.parametrize("prompt", [5, None, 1.5, {"a": 1}])
def test_a_prompt_of_a_wrong_type_is_refused_with_its_type(core, fake, prompt):
    with pytest.raises(RefusedError, match=f"chat messages, not {type(prompt).__name__}"):
        fake.generate(["a", prompt])
    # What was asked before it ends with it.
    assert core.aborted == list(core.requests)
