"""A value that means "off" equals no value, for every field that OpenAI or vLLM has."""

import json
import typing

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from ingle.errors import RefusedError
from ingle.fields import PLAIN
from ingle.generation import encode
from ingle.server import convert, embeddings, responses
from ingle.server.embeddings import EmbeddingRequest
from ingle.server.parse import BodyParser, UnknownFields
from ingle.server.protocol import ChatRequest, CompletionRequest
from ingle.server.protocol_responses import ResponsesRequest

CALLER = convert.Caller(tenant="", response_id="id", created=7, chunked=True, model="m")
HIDDEN_SIZE = 64
TEXT = {"type": "text"}

# What each field of OpenAI may be without meaning anything. null goes for all of them.
OPENAI = {
    "access_programs": [{}],
    "audio": [],
    "background": [False],
    "background_options": [],
    "best_of": [1],
    "context_management": [[]],
    "conversation": [],
    "echo": [False],
    "encoding_format": ["float"],
    "dimensions": [HIDDEN_SIZE],
    "frequency_penalty": [0, 0.0],
    "function_call": ["none", "auto"],
    "functions": [[]],
    "image": [],
    "include": [[], ["reasoning.encrypted_content"]],
    "instructions": [],
    "logit_bias": [{}],
    "logprobs": [False],
    "max_completion_tokens": [],
    "max_output_tokens": [],
    "max_tokens": [],
    "max_tool_calls": [0, 5],
    "metadata": [{}, {"a": "b"}],
    "modalities": [["text"]],
    "moderation": [],
    "n": [1],
    "parallel_tool_calls": [True],
    "prediction": [],
    "presence_penalty": [0, 0.0],
    "previous_response_id": [],
    "prompt_cache_key": ["", "x"],
    "prompt_cache_options": [{}, {"mode": "implicit"}],
    "prompt_cache_retention": ["in_memory", "24h"],
    "reasoning": [{}, {"effort": None, "summary": None}],
    "reasoning_effort": [],
    "response_format": [TEXT],
    "safety_identifier": ["", "x"],
    "seed": [],
    "service_tier": ["auto", "default"],
    "stop": [[]],
    "store": [False],
    "stream": [False],
    "stream_options": [{}, {"include_usage": False}, {"include_obfuscation": False}],
    "suffix": [""],
    "temperature": [],
    "text": [{}, {"format": TEXT}, {"verbosity": "medium"}],
    "tool_choice": ["none", "auto"],
    "tools": [[]],
    "top_logprobs": [0],
    "top_p": [1, 1.0],
    "truncation": ["disabled"],
    "user": ["", "x"],
    "verbosity": ["medium"],
    "web_search_options": [],
}
# The same of vLLM's, and of its relatives'.
VLLM = {
    "add_generation_prompt": [True],
    "allowed_token_ids": [],
    "bad_words": [[]],
    "cache_salt": [""],
    "chat_template": [""],
    "chat_template_kwargs": [{}],
    "continue_final_message": [False],
    "detokenize": [True],
    "documents": [[]],
    "early_stopping": [False],
    "ec_transfer_params": [{}],
    "guided_choice": [],
    "guided_decoding_backend": ["auto"],
    "guided_grammar": [],
    "guided_json": [],
    "guided_regex": [],
    "guided_whitespace_pattern": [],
    "ignore_eos": [False],
    "include_reasoning": [True],
    "include_stop_str_in_output": [False],
    "kv_transfer_params": [{}],
    "length_penalty": [1, 1.0],
    "logits_processors": [[]],
    "logprob_token_ids": [[]],
    "media_io_kwargs": [{}],
    "min_p": [0, 0.0],
    "min_tokens": [0],
    "mm_processor_kwargs": [{}],
    "no_stop_trim": [False],
    "priority": [0],
    "prompt_embeds": [[]],
    "prompt_logprobs": [],
    "regex": [],
    "repetition_detection": [],
    "repetition_penalty": [1, 1.0],
    "request_id": [""],
    "return_hidden_states": [False],
    "return_token_ids": [False],
    "return_token_offsets": [False],
    "return_tokens_as_token_ids": [False],
    "separate_reasoning": [True],
    "skip_special_tokens": [True],
    "spaces_between_special_tokens": [True],
    "stop_token_ids": [[]],
    "stream_reasoning": [True],
    "structured_outputs": [],
    "thinking_token_budget": [-1],
    "top_k": [0, -1],
    "truncate_prompt_tokens": [],
    "truncation_side": ["left"],
    "use_beam_search": [False],
    "vllm_xargs": [{}],
}
OF_EMBEDDINGS = {
    "add_special_tokens": [True],
    "embed_dtype": ["float32"],
    "endianness": ["native", "little"],
    "normalize": [True],
    "pooling": ["last"],
    "use_activation": [True],
}
PROMPT = {"prompt": "x"}
INPUT = {"input": "x"}
MESSAGES = {"messages": [{"role": "user", "content": "x"}]}


def plain(kind, body):
    """The core's document for a body."""
    parser = BodyParser(kind, UnknownFields(warn=False))
    data = json.dumps(body).encode()

    def make(request):
        if kind is CompletionRequest:
            return encode(convert.completion(request, CALLER))
        if kind is ChatRequest:
            return encode(convert.chat(request, CALLER))
        if kind is ResponsesRequest:
            return encode(convert.chat(responses.chat_request(request), CALLER))
        return encode(embeddings.embedding(request, CALLER, HIDDEN_SIZE))

    return make_same(json.loads(parser.converted(data, parser.parse(data), make)))


def make_same(document):
    """Without what says the same as nothing."""
    neutral = {name: field.off_values() for name, field in PLAIN.items()}
    sampling = document.get("sampling", {})
    document["sampling"] = {k: v for k, v in sampling.items() if v not in neutral.get(k, ())}
    chat = document["prompts"][0].get("chat", {})
    if not chat.get("tools") and chat.get("tool_choice") in ("auto", "none"):
        del chat["tool_choice"]
    if document["output"].get("pooling") == "last":
        del document["output"]["pooling"]
    return document


ENDPOINTS = [
    (CompletionRequest, PROMPT, completion_create_params.CompletionCreateParamsBase, {}),
    (ChatRequest, MESSAGES, chat_create_params.CompletionCreateParamsBase, {}),
    (ResponsesRequest, INPUT, response_create_params.ResponseCreateParamsBase, {}),
    (EmbeddingRequest, INPUT, embedding_create_params.EmbeddingCreateParams, OF_EMBEDDINGS),
]


@pytest.mark.parametrize(("kind", "body", "params", "more"), ENDPOINTS)
def test_off_values_of_the_own_fields_equal_absent(kind, body, params, more):
    expected = plain(kind, body)
    own = set(typing.get_type_hints(params)) - {"model", *body}
    if kind is ResponsesRequest:
        own.remove("prompt")  # A stored prompt, of which there is none; null is tried below.
    assert own <= set(OPENAI), "a new field of the official client: which values mean nothing?"
    fields = {name: field.off_values() for name, field in PLAIN.items()}
    fields |= {name: OPENAI[name] for name in own} | VLLM | more
    for name, values in fields.items():
        for value in [None, *values]:
            assert plain(kind, body | {name: value}) == expected, (name, value)
    assert plain(kind, body | dict.fromkeys(fields)) == expected


@pytest.mark.parametrize(("kind", "body", "params", "more"), ENDPOINTS)
def test_null_of_everybodys_fields_equals_absent(kind, body, params, more):
    expected = plain(kind, body)
    for name in {*OPENAI, *VLLM, *OF_EMBEDDINGS}:
        assert plain(kind, body | {name: None}) == expected, name


@pytest.mark.parametrize("kind", [CompletionRequest, EmbeddingRequest, ResponsesRequest])
def test_labels_go_everywhere(kind):
    body = PROMPT if kind is CompletionRequest else INPUT
    labels = {"metadata": {"a": "b"}, "safety_identifier": "x", "prompt_cache_key": "k"}
    labels |= {"store": False, "service_tier": "auto", "modalities": ["text"], "user": "u"}
    assert plain(kind, body | labels) == plain(kind, body)


@pytest.mark.parametrize(("kind", "body", "params", "more"), ENDPOINTS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("documents", ["x"]),
        ("chat_template", "x"),
        ("include_reasoning", False),
        ("verbosity", "high"),
        ("store", True),
        ("service_tier", "flex"),
        ("modalities", ["text", "audio"]),
        ("web_search_options", {}),
        ("truncation_side", "right"),
        ("thinking_token_budget", 5),
        ("logprob_token_ids", [1]),
        ("moderation", {"model": "x"}),
        ("best_of", True),
        ("include_reasoning", 1),
    ],
)
def test_other_values_are_refused_by_name(kind, body, params, more, name, value):
    with pytest.raises(RefusedError) as caught:
        plain(kind, body | {name: value})
    assert caught.value.param.split("[")[0] == name
