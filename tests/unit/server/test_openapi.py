import json
import re

from ingle.server import (
    openapi_answers,
    openapi_messages,
    openapi_responses,
    protocol,
    protocol_anthropic,
    protocol_messages,
    protocol_responses,
)
from ingle.server.openapi import openapi_document


def test_document_has_every_field_and_resolves():
    document = json.loads(json.dumps(openapi_document("1.2.3")))
    assert document["info"]["version"] == "1.2.3"
    schemas = document["components"]["schemas"]
    for kind in (protocol.CompletionRequest, protocol.ChatRequest, protocol.DetokenizeRequest):
        schema = schemas[kind.__name__]
        assert set(schema["properties"]) == set(kind.__struct_fields__)
        assert schema["additionalProperties"] is False
    refs = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert refs <= set(schemas)
    assert schemas["CompletionRequest"]["properties"]["temperature"]["anyOf"][0]["maximum"] == 2


def test_only_health_and_ready_need_no_key():
    paths = openapi_document("1")["paths"]
    open_paths = [path for path, ops in paths.items() if ops.get("get", {}).get("security") == []]
    assert open_paths == ["/health", "/ready"]


def test_every_answer_has_a_schema():
    document = openapi_document("1")
    # No request type has the name of one of them.
    several = [m.SCHEMAS for m in (openapi_answers, openapi_responses, openapi_messages)]
    answers = {name for schemas in several for name in schemas}
    assert len(answers) == sum(map(len, several))
    modules = (protocol, protocol_anthropic, protocol_messages, protocol_responses)
    assert not any(hasattr(module, name) for module in modules for name in answers)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                assert response["content"], (path, status)
                assert all(each["schema"] for each in response["content"].values()), (path, status)
    streamed = [
        path
        for path, methods in document["paths"].items()
        if "text/event-stream" in str(methods.get("post", {}).get("responses"))
    ]
    assert streamed == ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"]


def test_every_operation_says_what_it_does_under_a_name_of_its_own():
    paths = openapi_document("1")["paths"]
    operations = [operation for methods in paths.values() for operation in methods.values()]
    assert all(operation["summary"].endswith(".") for operation in operations)
    assert not any("Body of" in operation["summary"] for operation in operations)
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert "post_v1_chat_completions" in names
    assert all(re.fullmatch("[a-z0-9_]+", name) for name in names), names
