"""What a field of fixed values may be is said, and which word the client sent."""

import pytest

from ingle.errors import RefusedError
from ingle.server import convert, responses
from ingle.server.embeddings import EmbeddingRequest
from ingle.server.parse import BodyParser, UnknownFields
from ingle.server.protocol import ChatRequest, CompletionRequest
from ingle.server.protocol_responses import ResponsesRequest

CHAT = '{"messages":[{"role":"user","content":"x"}],'
CALLER = convert.Caller(tenant="", response_id="id", created=7, chunked=True, model="m")


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (
            ChatRequest,
            '{"messages":[{"role":"S3","content":"x"}]}',
            'messages[0].role: must be "assistant", "developer", "function", "system", "tool" or '
            '"user", not "S3"',
        ),
        (
            ChatRequest,
            CHAT + '"tool_choice":"S3"}',
            'tool_choice: must be "auto", "none", "required" or an object, not "S3"',
        ),
        (
            ChatRequest,
            CHAT + '"service_tier":"S3"}',
            'service_tier: must be "auto" or "default", not "S3"',
        ),
        (
            CompletionRequest,
            '{"prompt":"x","logprobs":true}',
            "logprobs: must be a whole number from 0 to 20 or false, not true",
        ),
        (ChatRequest, CHAT + '"modalities":["S3"]}', 'modalities[0]: must be "text", not "S3"'),
        (ChatRequest, CHAT + '"store":true}', "store: must be false, not true"),
        (
            ChatRequest,
            CHAT + '"response_format":{"type":"S3"}}',
            'response_format.type: must be "text", "json_object" or "json_schema", not "S3"',
        ),
        (
            ChatRequest,
            '{"messages":[{"role":"user","content":[{"type":"S3"}]}]}',
            'messages[0].content[0].type: must be "text" or "refusal", not "S3"',
        ),
        (
            ChatRequest,
            CHAT + '"tools":[{"type":"S3","function":{"name":"f"}}]}',
            'tools[0].type: must be "function", not "S3"',
        ),
        (
            EmbeddingRequest,
            '{"input":"x","encoding_format":"S3"}',
            'encoding_format: must be "base64" or "float", not "S3"',
        ),
        (
            EmbeddingRequest,
            '{"input":"x","pooling":"S3"}',
            'pooling: must be "last" or "mean", not "S3"',
        ),
        (
            ResponsesRequest,
            '{"input":"x","truncation":"S3"}',
            'truncation: must be "disabled", not "S3"',
        ),
        (
            ResponsesRequest,
            '{"input":[{"type":"S3"}]}',
            'input[0].type: must be "function_call", "function_call_output", "message" or '
            '"reasoning", not "S3"',
        ),
        (
            ResponsesRequest,
            '{"input":"x","text":{"format":{"type":"S3"}}}',
            'text.format.type: must be "text", "json_object" or "json_schema", not "S3"',
        ),
    ],
)
def test_fixed_values_are_listed(kind, body, message):
    make = {
        ChatRequest: lambda asked: convert.chat(asked, CALLER),
        ResponsesRequest: responses.chat_request,
        EmbeddingRequest: lambda asked: None,
        CompletionRequest: lambda asked: None,
    }[kind]
    with pytest.raises(RefusedError) as caught:
        make(BodyParser(kind, UnknownFields(warn=False)).parse(body.encode()))
    assert caught.value.message == message
