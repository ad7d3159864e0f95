"""The bounds of requests: those of the core, of the types and of the API document are the same."""

import re
from pathlib import Path

import pytest

from ingle.fields import MOST_CHOICES
from ingle.server import protocol_fields as fields
from ingle.server.openapi import openapi_document

RUST = Path(__file__).parents[3] / "rust"
SCHEMAS = openapi_document("1")["components"]["schemas"]


def core(file, name):
    """A constant of the core, whose source is the only place that has it."""
    text = (RUST / file).read_text()
    found = re.search(rf"const {name}: \w+ = (\d[\d_]*)(?: << (\w+))?;", text)
    assert found, f"{file} has no constant {name}"
    shift = found[2] or "0"
    return int(found[1]) << (int(shift) if shift.isdigit() else core(file, shift))


def bounds(kind, field, key):
    """The values of a keyword in the schema of a field, however deep they stand."""
    found = []

    def walk(node):
        if isinstance(node, dict):
            found.extend(value for name, value in node.items() if name == key)
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(SCHEMAS[kind]["properties"][field])
    return found


PREPARE = "engine/src/prepare.rs"
MOST_STOP_IDS = core(PREPARE, "MAX_STOP_TOKEN_IDS")
MOST_STOPS = core(PREPARE, "MAX_STOPS")
MOST_IDS = core("engine/src/body.rs", "MAX_NUMBERS")
BOTH = ("CompletionRequest", "ChatRequest")


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("field", "key", "expected"),
    [
        ("stop_token_ids", "maxItems", [MOST_STOP_IDS]),
        ("stop", "maxItems", [MOST_STOPS + MOST_STOP_IDS]),
        ("stop", "maxLength", [core(PREPARE, "MAX_STOP_BYTES")] * 2),
        ("n", "maximum", [core(PREPARE, "MAX_N")]),
        ("logit_bias", "maxProperties", [core("engine/src/sampling.rs", "MAX_LOGIT_BIAS")]),
        ("prompt_logprobs", "maximum", [core("engine/src/sampling.rs", "MAX_LOG_PROBS")]),
        ("bad_words", "maxItems", [core("text/src/bad_words/factory.rs", "MAX_WORDS")]),
        # The core counts bytes: up to four a character.
        ("bad_words", "maxLength", [core("text/src/bad_words/factory.rs", "MAX_WORD_BYTES") // 4]),
        ("guided_choice", "maxItems", [core("text/src/grammar/bounds.rs", "MAX_CHOICES")]),
        ("allowed_token_ids", "maxItems", [MOST_IDS]),
        ("allowed_token_ids", "minItems", [1]),
    ],
)
def test_bounds_of_completions_and_chats_are_the_cores(kind, field, key, expected):
    assert bounds(kind, field, key) == expected


@pytest.mark.parametrize(
    ("kind", "field", "key", "expected"),
    [
        ("CompletionRequest", "logprobs", "maximum", "MAX_LOG_PROBS"),
        ("ChatRequest", "top_logprobs", "maximum", "MAX_LOG_PROBS"),
        ("ResponsesRequest", "top_logprobs", "maximum", "MAX_LOG_PROBS"),
    ],
)
def test_bounds_of_log_probs_are_the_cores(kind, field, key, expected):
    assert bounds(kind, field, key) == [core("engine/src/sampling.rs", expected)]


def test_bounds_of_other_lists_are_the_cores():
    assert bounds("ResponsesRequest", "stop", "maxItems") == [MOST_STOPS + MOST_STOP_IDS]
    assert bounds("StructuredOutputs", "choice", "maxItems") == [MOST_CHOICES]
    assert bounds("CompletionRequest", "best_of", "maximum") == [core(PREPARE, "MAX_N")]
    assert bounds("DetokenizeRequest", "tokens", "maxItems") == [MOST_IDS]
    for kind, field in (("CompletionRequest", "prompt"), ("EmbeddingRequest", "input")):
        prompts = fields.MOST_PROMPTS
        assert sorted(bounds(kind, field, "maxItems")) == [prompts, prompts, MOST_IDS, MOST_IDS]
    assert core("engine/src/submission.rs", "MAX_CHOICES") >= fields.MOST_PROMPTS
    assert fields.MOST_IDS == MOST_IDS
    assert (fields.MOST_STOPS, fields.MOST_STOP_IDS) == (MOST_STOPS, MOST_STOP_IDS)


def test_every_list_of_a_request_has_a_bound():
    asking = [name for name in SCHEMAS if name.endswith("Request")]
    assert len(asking) == 9
    for kind in asking:
        for field, schema in SCHEMAS[kind]["properties"].items():
            for option in (schema, *schema.get("anyOf", ())):
                is_list = "array" in str(option.get("type"))
                # One of a few words each: no bound but that of the body.
                has_words = "enum" in option.get("items", {})
                assert not is_list or has_words or "maxItems" in option, f"{kind}.{field}"
