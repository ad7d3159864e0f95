"""A request field has one definition, and everything that is made from it says the same."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ingle.cli import parser
from ingle.config import Settings, names
from ingle.engine import Engine
from ingle.errors import ConfigError, RefusedError
from ingle.fields import API_FIELDS, PLAIN
from ingle.generation import Sampling
from ingle.sampling import SamplingParams
from ingle.server.embeddings import EmbeddingRequest
from ingle.server.openapi import openapi_document
from ingle.server.parse import BodyParser, UnknownFields
from ingle.server.protocol import ChatRequest, CompletionRequest
from ingle.server.protocol_anthropic import MessagesRequest
from ingle.server.protocol_responses import ResponsesRequest
from ingle.server.unknown import off_values

ROOT = Path(__file__).resolve().parents[2]
ASKING = {
    CompletionRequest: '"prompt":"x"',
    ChatRequest: '"messages":[{"role":"user","content":"x"}]',
    ResponsesRequest: '"input":"x"',
    MessagesRequest: '"max_tokens":1,"messages":[{"role":"user","content":"x"}]',
}


def beyond(field):
    """Values just out of range, and of other types."""
    step = 1 if field.is_whole else 1e-6
    number = field.number()
    below = number(field.least) - (0 if field.excludes_least else step)
    return [below, number(field.most) + step, True, [1]] + [0.5] * field.is_whole


def test_what_is_generated_is_up_to_date():
    done = subprocess.run(
        [sys.executable, "tools/write_fields.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("field", PLAIN.values(), ids=lambda field: field.name)
def test_a_range_has_one_text_wherever_it_is_met(field):
    for value in beyond(field):
        messages = set()
        for kind, body in ASKING.items():
            text = f'{{{body},"{field.name}":{msgspec.json.encode(value).decode()}}}'
            with pytest.raises(RefusedError) as caught:
                BodyParser(kind, UnknownFields(warn=False)).parse(text.encode())
            assert caught.value.param == field.name
            messages.add(caught.value.message)
        with pytest.raises(RefusedError) as caught:
            SamplingParams(**{field.name: value})
        assert caught.value.param == field.name
        messages.add(caught.value.message)
        [message] = messages
        assert message.startswith(f"{field.name}: must be {field.allowed}, not ")


@pytest.mark.parametrize("field", PLAIN.values(), ids=lambda field: field.name)
def test_the_ends_of_a_range_and_its_off_values_are_taken(field):
    number = field.number()
    least = number(field.least) + (1e-6 if field.excludes_least else 0)
    for value in (least, number(field.most), *field.off_values(), None):
        assert getattr(SamplingParams(**{field.name: value}), field.name) == value
        for kind, body in ASKING.items():
            text = f'{{{body},"{field.name}":{msgspec.json.encode(value).decode()}}}'
            request = BodyParser(kind, UnknownFields(warn=False)).parse(text.encode())
            assert getattr(request, field.name) == value


def test_every_layer_has_every_plain_field():
    schemas = openapi_document("1")["components"]["schemas"]
    flags = parser().parse_args(["generate", "m", "p"])
    for name, field in PLAIN.items():
        for kind in ASKING:
            described = schemas[kind.__name__]["properties"][name]["anyOf"][0]
            assert described["description"] == field.about
            assert described["maximum"] == field.most
        assert name in Sampling.__struct_fields__
        assert name in schemas["Model"]["properties"]["default_sampling_params"]["required"] or (
            not field.from_model
        )
        assert getattr(flags, name) is None
        assert off_values().get(name, ()) == field.off_values()


def test_an_editor_sees_every_argument_of_sampling_params():
    parameters = inspect.signature(SamplingParams).parameters
    assert list(parameters) == list(API_FIELDS)
    assert all(each.kind is each.KEYWORD_ONLY for each in parameters.values())
    assert parameters["temperature"].annotation == float | None
    assert parameters["n"].default == 1


def test_an_editor_sees_every_argument_of_an_engine():
    parameters = dict(inspect.signature(Engine).parameters)
    assert parameters.pop("model").default is inspect.Parameter.empty
    settings = {each.name: each for each in dataclasses.fields(Settings)}
    assert list(parameters) == names("engine")
    for name, parameter in parameters.items():
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.default == settings[name].default
        assert f"{name}: " in Engine.__init__.__doc__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs: must be a whole number from 1 to 65536, not 0"),
        ({"block_size": "64"}, 'block_size: must be a whole number from 1 to 65536, not "64"'),
        ({"generation_config": "on"}, 'generation_config: must be "auto" or "none", not "on"'),
        ({"enforce_eager": 1}, "enforce_eager: must be true or false, not 1"),
        ({"cache_dir": 5}, "cache_dir: must be a path, not 5"),
        ({"seed": 2**64}, f"seed: must be a whole number from 0 to {2**64 - 1}, not {2**64}"),
        ({"model": ""}, "model: must be a string of at least 1 character, not an empty one"),
    ],
)
def test_an_engines_arguments_are_checked_before_anything_is_loaded(arguments, message):
    with pytest.raises(ConfigError) as caught:
        Engine(**{"model": "/nowhere"} | arguments)
    assert str(caught.value) == message


def test_an_argument_that_an_engine_does_not_have_is_refused():
    with pytest.raises(TypeError, match="max_num_sequences"):
        Engine("/nowhere", max_num_sequences=1)


def test_off_values_of_one_endpoint_are_taken_by_the_others():
    parse = BodyParser(EmbeddingRequest, UnknownFields(warn=False)).parse
    for body in ('"min_p":0.0', '"top_k":-1', '"n":1', '"tools":[]', '"echo":false', '"stop":[]'):
        parse(f'{{"input":"x",{body}}}'.encode())
    with pytest.raises(RefusedError, match="unknown field: min_p"):
        parse(b'{"input":"x","min_p":0.1}')
