"""What the Python API takes as prompts, ids and names, and how it names what it does not take."""

from pathlib import Path

import numpy as np
import pytest

from ingle import ConfigError, Engine, ModelError, RefusedError, SamplingParams, engine
from ingle.config import Settings
from ingle.fields import API_FIELDS

BIG = 2**70


class Id(int):
    """A whole number of a type of its own."""


@pytest.fixture
def fake(core, monkeypatch):
    """An engine whose core returns what it was given."""
    core.tokenize = core.detokenize = lambda given: given
    monkeypatch.setattr(engine._core, "Engine", lambda options, sockets, *shared: core)
    with Engine("m") as made:
        yield made


@pytest.mark.parametrize(
    "given", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), [np.int64(1), Id(2)], iter([1, 2])]
)
def test_ids_of_any_kind_are_taken(fake, given):
    assert fake.detokenize(given) == [1, 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([-1], "token_ids[0]: token id -1 is outside the vocabulary of 400"),
        ([1, 400], "token_ids[1]: token id 400 is outside the vocabulary of 400"),
        ([BIG], f"token_ids[0]: must be a token id, not {BIG}"),
        ([1, "a"], 'token_ids[1]: must be a token id, not "a"'),
        ([1.5], "token_ids[0]: must be a token id, not 1.5"),
        ([True], "token_ids[0]: must be a token id, not true"),
        ([None], "token_ids[0]: must be a token id, not null"),
        ([[1]], "token_ids[0]: must be a token id, not a list"),
        ("ab", 'token_ids: must be a list of token ids, not "ab"'),
        (b"ab", "token_ids: must be a list of token ids, not a bytes"),
        (None, "token_ids: must be a list of token ids, not null"),
        (5, "token_ids: must be a list of token ids, not 5"),
        ({1: 2}, "token_ids: must be a list of token ids, not an object"),
        ({1}, "token_ids: must be a list of token ids, not a set"),
    ],
)
def test_what_is_no_list_of_ids_is_named(fake, given, message):
    with pytest.raises(RefusedError) as caught:
        fake.detokenize(given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([BIG], f"prompt[0]: must be a token id, not {BIG}"),
        ([1, "a"], 'prompt[1]: must be a token id, not "a"'),
        (["a"], 'prompt[0]: must be a token id or a message, not "a"'),
        ([True], "prompt[0]: must be a token id or a message, not true"),
        (b"ab", "prompt: must be text, token ids or chat messages, not bytes"),
        (bytearray(b"ab"), "prompt: must be text, token ids or chat messages, not bytearray"),
        ([{}], "messages[0].role: must be a string, not null"),
        ([{"role": 5}], "messages[0].role: must be a string, not 5"),
        (
            [{"role": "user"}],
            "messages[0].content: must be a string or a list of text parts, not null",
        ),
        (
            [{"role": "user", "content": b"x"}],
            "messages[0].content: must be a string or a list of text parts, not a bytes",
        ),
        (
            [{"role": "user", "content": "x"}, "a"],
            'messages[1]: must be a message, as {"role": "user", "content": "x"}, not "a"',
        ),
    ],
)
async def test_the_wrong_part_of_a_prompt_is_named_wherever_it_is_given(
    core, fake, prompt, message
):
    with pytest.raises(RefusedError) as caught:
        fake.tokenize(prompt)
    assert str(caught.value) == message
    with pytest.raises(RefusedError) as caught:
        await anext(fake.stream(prompt))
    assert str(caught.value) == message
    assert core.requests == {}


@pytest.mark.parametrize("prompts", [b"ab", bytearray(b"ab"), memoryview(b"ab"), {1}])
def test_bytes_are_no_list_of_prompts(fake, prompts):
    with pytest.raises(RefusedError, match=rf"^prompts: .*, not {type(prompts).__name__}$"):
        fake.generate(prompts)
    with pytest.raises(RefusedError, match=r"^sampling_params: .*, not bytes$"):
        fake.generate("x", b"ab")


def test_flags_names_and_keys_have_their_types(fake):
    for value in ("yes", 1, None):
        with pytest.raises(RefusedError, match=r"^add_special_tokens: must be True or False"):
            fake.tokenize("x", add_special_tokens=value)
    for value in ("1", None, 1.5, True):
        with pytest.raises(RefusedError, match=r"^request_id: must be a whole number"):
            fake.abort(value)
    with pytest.raises(RefusedError, match=r"^chat_template_name: must be a string, not 5$"):
        fake.tokenize([{"role": "user", "content": "x"}], chat_template_name=5)
    with pytest.raises(RefusedError, match=r"^chat_template_name: only allowed with chat messages"):
        fake.tokenize("x", chat_template_name="rag")


def test_a_template_is_chosen_by_its_name(core, fake):
    core.on_submit = lambda key, request: core.answer(key)
    fake.generate([{"role": "user", "content": "x"}], chat_template_name="rag")
    [request] = core.requests.values()
    assert request["prompts"][0]["chat"]["template_name"] == "rag"


@pytest.mark.parametrize("name", API_FIELDS)
@pytest.mark.parametrize(
    "value", ["\ud800", ["\ud800"], {"\ud800": 1}, b"x", [b"x"], [BIG], object(), {"a": b"x"}]
)
def test_no_value_of_a_parameter_raises_another_error(name, value):
    with pytest.raises(RefusedError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param.startswith(name)
    assert caught.value.message.startswith(name)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": b"x"}, "guided_json.type: a value of type bytes has no form in JSON"),
        ({1: 2}, "guided_json: a key must be a string, not 1"),
        ({"enum": [float("nan")]}, "guided_json.enum[0]: must be a finite number, not nan"),
        ({"enum": {1}}, "guided_json.enum: a value of type set has no form in JSON"),
    ],
)
def test_a_schema_that_json_cannot_carry_is_refused_by_its_path(schema, message):
    with pytest.raises(RefusedError) as caught:
        SamplingParams(guided_json=schema)
    assert str(caught.value) == message


def test_settings_are_texts_that_files_and_json_can_have():
    for name in ("model", "served_model_name", "device", "host", "chat_template", "cache_dir"):
        for text, reason in (
            ("a\0b", "must not contain a null character"),
            ("ab\ud800", "character 2 is not valid Unicode"),
        ):
            with pytest.raises(ConfigError, match=rf"^{name}: {reason}"):
                Settings(**{"model": "m", name: text})
    with pytest.raises(ConfigError, match=r"^seed: .*not valid Unicode"):
        Settings(model="m", seed="\ud800")
    with pytest.raises(ConfigError, match=r"^served_model_name: .*not an empty one$"):
        Settings(model="m", served_model_name="")


def test_a_name_that_no_file_can_have_is_the_model_s_error():
    with pytest.raises(ModelError, match="File name too long"):
        Engine("x" * 5000)
    assert Settings(model=str(Path("x" * 5000))).model_name() == "x" * 5000
