"""The OpenAPI document, made from the request types: limits cannot drift from what is checked.

Runs once at start.
"""

from typing import Any

import msgspec

from ingle.server import protocol, protocol_messages
from ingle.server.embeddings import EmbeddingRequest
from ingle.server.protocol_responses import ContentPart, InputItem, ResponsesRequest

BODIES: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "/v1/completions": (protocol.CompletionRequest,),
    "/v1/chat/completions": (protocol.ChatRequest,),
    "/v1/responses": (ResponsesRequest,),
    "/v1/embeddings": (EmbeddingRequest,),
    "/tokenize": (protocol.TokenizeTextRequest, protocol.TokenizeChatRequest),
    "/detokenize": (protocol.DetokenizeRequest,),
}
PARTS = (protocol_messages.TextPart, protocol_messages.RefusalPart, InputItem, ContentPart)
"""What the schemas of parts that stay JSON refer to."""
SUMMARIES: dict[str, str] = {
    "/v1/completions": "Continues prompts: text, texts, token ids or lists of them.",
    "/v1/chat/completions": "Answers a chat, also with tool calls or in a given form.",
    "/v1/responses": "The same in OpenAI's newer words; nothing is stored.",
    "/v1/embeddings": "One vector for each input: the model's own final hidden state.",
    "/tokenize": "Token ids of a prompt or of a chat.",
    "/detokenize": "Text of token ids.",
}
READS: dict[str, str] = {
    "/v1/models": "The served model, its context length and sampling defaults.",
    "/v1/models/{model}": "The same for one name.",
    "/health": "200 while tokens can move, else 503.",
    "/ready": "200 while new requests are taken, else 503.",
    "/metrics": "Prometheus text.",
    "/version": "The version.",
    "/openapi.json": "This document.",
}
OPEN = ("/health", "/ready")
STREAMED = ("/v1/completions", "/v1/chat/completions", "/v1/responses")


def openapi_document(version: str) -> dict[str, Any]:
    """The whole document as plain values."""
    kinds = [*(kind for bodies in BODIES.values() for kind in bodies), *PARTS]
    refs, schemas = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    by_kind = dict(zip(kinds, refs, strict=True))
    schemas["Error"] = ERROR_SCHEMA
    paths: dict[str, Any] = {}
    for path, bodies in BODIES.items():
        options = [by_kind[kind] for kind in bodies]
        schema = options[0] if len(options) == 1 else {"anyOf": options}
        paths[path] = {
            "post": {
                "summary": SUMMARIES[path],
                "operationId": operation_id("post", path),
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": schema}},
                },
                "responses": responses(("400", "401", "404", "413", "415", "429", "500", "503")),
            }
        }
        if path in STREAMED:
            content = paths[path]["post"]["responses"]["200"]["content"]
            content["text/event-stream"] = {"schema": {}}
    for path, summary in READS.items():
        operation: dict[str, Any] = {
            "summary": summary,
            "operationId": operation_id("get", path),
            "responses": responses(("401", "404")),
        }
        if path in OPEN:
            operation["security"] = []
            operation["responses"]["503"] = {"description": "Not now."}
        if path == "/metrics":
            content = operation["responses"]["200"]["content"]
            content["text/plain"] = {"schema": {"type": "string"}}
            del content["application/json"]
        if "{model}" in path:
            operation["parameters"] = [
                {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        paths[path] = {"get": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ingle", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def operation_id(method: str, path: str) -> str:
    """The name that generated clients give a call: `post_v1_chat_completions`."""
    return method + path.translate(str.maketrans("/.", "__", "{}"))


def responses(errors: tuple[str, ...]) -> dict[str, Any]:
    """200 and the listed errors, which all have one shape."""
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    result: dict[str, Any] = {
        "200": {"description": "Done.", "content": {"application/json": {"schema": {}}}}
    }
    result.update({code: {"description": "Error.", "content": error} for code in errors})
    return result


ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
