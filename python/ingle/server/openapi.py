"""The OpenAPI document, made from the request types, so its limits match what is checked.

Runs once at start. Response schemas are in openapi_answers.py.
"""

from typing import Any

import msgspec

from ingle.server import (
    openapi_answers,
    openapi_messages,
    openapi_responses,
    protocol,
    protocol_anthropic,
    protocol_messages,
)
from ingle.server.embeddings import EmbeddingRequest
from ingle.server.openapi_answers import ANSWERS, EVENTS, ref
from ingle.server.protocol_responses import ContentPart, InputItem, ResponsesRequest

BODIES: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "/v1/completions": (protocol.CompletionRequest,),
    "/v1/chat/completions": (protocol.ChatRequest,),
    "/v1/completions/render": (protocol.CompletionRequest,),
    "/v1/chat/completions/render": (protocol.ChatRequest,),
    "/v1/responses": (ResponsesRequest,),
    "/v1/messages": (protocol_anthropic.MessagesRequest,),
    "/v1/messages/count_tokens": (protocol_anthropic.CountTokensRequest,),
    "/v1/embeddings": (EmbeddingRequest,),
    "/tokenize": (protocol.TokenizeTextRequest, protocol.TokenizeChatRequest),
    "/detokenize": (protocol.DetokenizeRequest,),
}
PARTS = (
    protocol_messages.TextPart,
    protocol_messages.RefusalPart,
    InputItem,
    ContentPart,
    protocol_anthropic.TextBlock,
    protocol_anthropic.ToolUseBlock,
    protocol_anthropic.ToolResultBlock,
    protocol_anthropic.ThinkingBlock,
)
"""What the schemas of parts that stay JSON refer to."""
SUMMARIES: dict[str, str] = {
    "/v1/completions": "Continues prompts: text, texts, token ids or lists of them.",
    "/v1/chat/completions": "Answers a chat, also with tool calls or in a given form.",
    "/v1/completions/render": "The prompts of such a request as token ids; nothing is generated.",
    "/v1/chat/completions/render": "The prompt of such a request as token ids.",
    "/v1/responses": "The same in OpenAI's newer words; nothing is stored.",
    "/v1/messages": "Anthropic's API: answers a chat, also with tool calls and thinking.",
    "/v1/messages/count_tokens": "How many tokens the prompt of such a chat has.",
    "/v1/embeddings": "One vector for each input: the model's own final hidden state.",
    "/tokenize": "Token ids of a prompt or of a chat.",
    "/detokenize": "Text of token ids.",
}
READS: dict[str, str] = {
    "/v1/models": "The served model, its context length and sampling defaults.",
    "/v1/models/{model}": "The same for one name.",
    "/tokenizer_info": "The tokenizer's named tokens and the chat template, for remote tokenizers.",
    "/health": "200 while tokens can move, else 503.",
    "/ready": "200 while new requests are taken, else 503.",
    "/metrics": "Prometheus text.",
    "/version": "The version.",
    "/openapi.json": "This document.",
}
OPEN = ("/health", "/ready")
ASKING = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"),
    *("/v1/messages", "/v1/completions/render", "/v1/chat/completions/render"),
)
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
"""Errors of these have Anthropic's shape, and 529 in place of 503."""
ERRORS: dict[str, str] = {
    "400": "The request is not valid; `param` names the field, if it is one.",
    "401": "The API key is missing or unknown.",
    "403": "The API key is not an admin's.",
    "404": "The model has another name.",
    "408": "The body did not come in time.",
    "413": "The body is longer than max-body-bytes.",
    "415": "The body is not plain JSON.",
    "417": "The Expect header asks for something other than 100-continue.",
    "429": "The queue is full; Retry-After says when to come again.",
    "431": "A header or the request line is too long.",
    "500": "The server failed.",
    "529": "As 503 elsewhere.",
    "503": "The server is leaving, or cannot go on; Retry-After says when to come again.",
}
BEFORE_ROUTES = ("417", "431")
"""Answered before anybody looks at the path: in OpenAI's shape everywhere."""
OF_ALL = ("400", "417", "431", "500")
OF_BODIES = ("404", "408", "413", "415")
OF_ANSWERS = ("429", "503")
DESCRIPTION = (
    "An LLM behind OpenAI's API. HEAD is answered wherever GET is. Any other method is a 405, "
    "whose Allow header names the right ones, and any other path a 404; both have an `Error`. "
    "Every answer has an `X-Request-Id`: the request's own if it is printable, else a new one. "
    "Requests with the same `X-Session-Affinity` (or `X-Session-Id`, or `X-Session-Token`) go to "
    "the same engine of a server with several, as long as it is not much busier than the others."
)


def openapi_document(version: str) -> dict[str, Any]:
    """The whole document as plain values."""
    kinds = [*(kind for bodies in BODIES.values() for kind in bodies), *PARTS]
    refs, schemas = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    by_kind = dict(zip(kinds, refs, strict=True))
    schemas |= openapi_answers.SCHEMAS | openapi_responses.SCHEMAS | openapi_messages.SCHEMAS
    paths: dict[str, Any] = {}
    for path, bodies in BODIES.items():
        options = [by_kind[kind] for kind in bodies]
        body = options[0] if len(options) == 1 else {"anyOf": options}
        paths[path] = {"post": post(path, body)}
    for path in READS:
        paths[path] = {"get": get(path)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ingle", "version": version, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "key_header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
        "security": [{"key": []}, {"key_header": []}, {}],
    }


def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """An operation whose request has a body of this schema."""
    answer: dict[str, Any] = {"application/json": {"schema": ref(ANSWERS[path])}}
    if path in EVENTS:
        answer["text/event-stream"] = {"schema": EVENTS[path]}
    errors = (*OF_ALL, "401", *OF_BODIES, *(OF_ANSWERS if path in ASKING else ()))
    return {
        "summary": SUMMARIES[path],
        "operationId": operation_id("post", path),
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": responses(answer, errors, path in ANTHROPIC),
    }


def get(path: str) -> dict[str, Any]:
    """An operation without a body."""
    answer: dict[str, Any] = (
        {"text/plain": {"schema": {"type": "string"}}}
        if path == "/metrics"
        else {"application/json": {"schema": ref(ANSWERS[path])}}
    )
    needs_key = () if path in OPEN else ("401",)
    needs_admin = ("403",) if path == "/metrics" else ()
    has_name = ("404",) if "{model}" in path else ()
    operation: dict[str, Any] = {
        "summary": READS[path],
        "operationId": operation_id("get", path),
        "responses": responses(answer, (*OF_ALL, *needs_key, *needs_admin, *has_name)),
    }
    if path in OPEN:
        operation["security"] = []
        operation["responses"]["503"] = {"description": "Not now.", "content": answer}
    if has_name:
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return operation


def operation_id(method: str, path: str) -> str:
    """The name that generated clients give a call: `post_v1_chat_completions`."""
    return method + path.translate(str.maketrans("/.", "__", "{}"))


def responses(
    answer: dict[str, Any], errors: tuple[str, ...], is_anthropic: bool = False
) -> dict[str, Any]:
    """A 200 and the listed errors."""
    described = {}
    for code in sorted(errors):
        has_shape = is_anthropic and code not in BEFORE_ROUTES
        shape = ref("MessageError" if has_shape else "Error")
        name = "529" if is_anthropic and code == "503" else code
        described[name] = {
            "description": ERRORS[name],
            "content": {"application/json": {"schema": shape}},
        }
    return {"200": {"description": "Done.", "content": answer}, **described}
