"""[1] Structured output and tools of a request, as the core's document has them.

Any thread, no I/O. This file decides what the fields mean. The core decides whether a schema or
grammar can be enforced.
"""

import re
from typing import Literal

from msgspec import Raw

from ingle.fields import LIMITS
from ingle.generation import ChosenFunction, Function, Grammar, Tool
from ingle.server.protocol import (
    ChatRequest,
    FunctionDefinition,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    SamplingFields,
    ToolDefinition,
)
from ingle.server.raw import given, kind, must_be, object_in_text, refused, text_of, texts


def grammar(request: SamplingFields) -> Grammar | None:
    """What the answer must match, if the request has such a field; it may have one."""
    found = [*_response_format(request), *_guided(request), *_structured_outputs(request)]
    if len(found) > 1:
        first, second = found[0].field, found[1].field
        if first == second:
            raise refused(first, "only one of its fields may be set")
        raise refused(second, f"cannot be combined with {first}")
    return found[0] if found else None


def tools(definitions: list[ToolDefinition] | None) -> list[Tool]:
    """The functions that the model may call."""
    return [
        Tool(
            Function(
                name=tool_name(tool.function.name, f"tools[{i}].function.name"),
                description=tool.function.description,
                parameters=parameters(tool, f"tools[{i}].function.parameters"),
                strict=bool(tool.function.strict),
            )
        )
        for i, tool in enumerate(definitions or ())
    ]


def function_tool(
    index: int, name: str, description: str | None, parameters: Raw, strict: bool | None
) -> ToolDefinition:
    """A tool of another API's request, `tools[index]` there, as chats have it."""
    function = FunctionDefinition(
        name=tool_name(name, f"tools[{index}].name"),
        description=description,
        parameters=parameters,
        strict=strict,
    )
    return ToolDefinition(type="function", function=function)


def tool_name(name: str, place: str) -> str:
    """The name of a function."""
    if TOOL_NAME.match(name) is None:
        raise refused(place, "must be 1 to 128 characters of A-Z, a-z, 0-9 and _.:/-")
    return name


def parameters(tool: ToolDefinition, place: str) -> Raw | None:
    """The schema of a function's arguments."""
    found = given(tool.function.parameters)
    return None if found is None else must_be(found, place, "object")


ToolChoice = Literal["auto", "none", "required"] | ChosenFunction | None


def tool_choice(request: ChatRequest) -> ToolChoice:
    """The core's `tool_choice`."""
    choice = request.tool_choice
    return ChosenFunction(choice.function.name) if isinstance(choice, NamedTool) else choice


def _response_format(request: SamplingFields) -> list[Grammar]:
    form = request.response_format
    if isinstance(form, JsonObjectFormat):
        return [Grammar(kind="json_object", field="response_format")]
    if isinstance(form, JsonSchemaFormat):
        place = "response_format.json_schema.schema"
        schema = must_be(form.json_schema.schema, place, "object")
        return [Grammar(kind="json_schema", field="response_format", schema=schema)]
    return []


def _guided(request: SamplingFields) -> list[Grammar]:
    found = []
    schema = given(request.guided_json)
    if schema is not None:
        found.append(_json_schema("guided_json", schema))
    if request.guided_regex is not None:
        found.append(Grammar(kind="regex", field="guided_regex", regex=request.guided_regex))
    choices = given(request.guided_choice)
    if choices is not None:
        several = texts(choices, "guided_choice", LIMITS.choices)
        found.append(Grammar(kind="choice", field="guided_choice", choices=several))
    if request.guided_grammar is not None:
        found.append(Grammar(kind="lark", field="guided_grammar", lark=request.guided_grammar))
    if request.regex is not None:
        found.append(Grammar(kind="regex", field="regex", regex=request.regex))
    return found


def _structured_outputs(request: SamplingFields) -> list[Grammar]:
    field, wanted = "structured_outputs", request.structured_outputs
    if wanted is None:
        return []
    found = []
    schema, choices = given(wanted.json), given(wanted.choice)
    if schema is not None:
        found.append(_json_schema(field, schema))
    if wanted.json_object:
        found.append(Grammar(kind="json_object", field=field))
    if wanted.regex is not None:
        found.append(Grammar(kind="regex", field=field, regex=wanted.regex))
    if choices is not None:
        several = texts(choices, f"{field}.choice", LIMITS.choices)
        found.append(Grammar(kind="choice", field=field, choices=several))
    if wanted.grammar is not None:
        found.append(Grammar(kind="lark", field=field, lark=wanted.grammar))
    if not found:
        raise refused(field, "none of its fields is set")
    return found


def _json_schema(field: str, schema: Raw) -> Grammar:
    """A schema, also as JSON text."""
    must_be(schema, field, "object", "string")
    if kind(schema) == "string":
        found = object_in_text(text_of(schema))
        if found is None:
            raise refused(field, "the text is not a schema: it must be a JSON object")
        schema = found
    return Grammar(kind="json_schema", field=field, schema=schema)


TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}\Z")
