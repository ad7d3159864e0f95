"""The bounds of requests: the types and the API document have those of the core."""

import pytest

from ingle.fields import LIMITS
from ingle.server import protocol_fields as fields
from ingle.server.openapi import openapi_document

SCHEMAS = openapi_document("1")["components"]["schemas"]


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


BOTH = ("CompletionRequest", "ChatRequest")


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("field", "key", "expected"),
    [
        ("stop_token_ids", "maxItems", [LIMITS.stop_token_ids]),
        ("stop", "maxItems", [LIMITS.stops + LIMITS.stop_token_ids]),
        ("stop", "maxLength", [LIMITS.stop_chars] * 2),
        ("n", "maximum", [LIMITS.n]),
        ("logit_bias", "maxProperties", [LIMITS.logit_bias]),
        ("prompt_logprobs", "maximum", [LIMITS.logprobs]),
        ("bad_words", "maxItems", [LIMITS.bad_words]),
        ("bad_words", "maxLength", [LIMITS.bad_word_chars]),
        ("guided_choice", "maxItems", [LIMITS.choices]),
        ("allowed_token_ids", "maxItems", [LIMITS.ids]),
        ("allowed_token_ids", "minItems", [1]),
    ],
)
def test_bounds_of_completions_and_chats_are_the_cores(kind, field, key, expected):
    assert bounds(kind, field, key) == expected


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("CompletionRequest", "logprobs"),
        ("ChatRequest", "top_logprobs"),
        ("ResponsesRequest", "top_logprobs"),
    ],
)
def test_bounds_of_log_probs_are_the_cores(kind, field):
    assert bounds(kind, field, "maximum") == [LIMITS.logprobs]


def test_bounds_of_other_lists_are_the_cores():
    assert bounds("ResponsesRequest", "stop", "maxItems") == [LIMITS.stops + LIMITS.stop_token_ids]
    assert bounds("StructuredOutputs", "choice", "maxItems") == [LIMITS.choices]
    assert bounds("CompletionRequest", "best_of", "maximum") == [LIMITS.n]
    assert bounds("DetokenizeRequest", "tokens", "maxItems") == [LIMITS.ids]
    for kind, field in (("CompletionRequest", "prompt"), ("EmbeddingRequest", "input")):
        prompts = fields.MOST_PROMPTS
        assert sorted(bounds(kind, field, "maxItems")) == [prompts, prompts, LIMITS.ids, LIMITS.ids]


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
