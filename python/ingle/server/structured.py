"""[1] Structured output and tools of a request, as the core's document has them.

Event loop, no I/O. What the names mean is decided here; whether a schema or grammar can be
enforced, the core says.
"""

from typing import Any, Literal

import msgspec

from ingle.errors import RefusedError
from ingle.generation import ChosenFunction, Function, Grammar, Tool
from ingle.server.bad_words import bad_words_grammar
from ingle.server.protocol import (
    ChatRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    SamplingFields,
    ToolDefinition,
)


def grammar(request: SamplingFields) -> Grammar | None:
    """What the answers must match, if the request says so; it may say so once."""
    found = [*_response_format(request), *_guided(request), *_structured_outputs(request)]
    if request.bad_words:
        found.append(bad_words_grammar(request.bad_words))
    if len(found) > 1:
        first, second = found[0].field, found[1].field
        if first == second:
            raise _refused(first, "only one of its fields may be set")
        raise _refused(second, f"cannot be combined with {first}")
    return found[0] if found else None


def tools(given: list[ToolDefinition] | None) -> list[Tool]:
    """The functions that the model may call."""
    return [
        Tool(
            Function(
                name=tool.function.name,
                description=tool.function.description,
                parameters=tool.function.parameters,
                strict=bool(tool.function.strict),
            )
        )
        for tool in given or ()
    ]


ToolChoice = Literal["auto", "none", "required"] | ChosenFunction | None


def tool_choice(request: ChatRequest) -> ToolChoice:
    """Who chooses whether a tool is called."""
    choice = request.tool_choice
    return ChosenFunction(choice.function.name) if isinstance(choice, NamedTool) else choice


def _response_format(request: SamplingFields) -> list[Grammar]:
    given = request.response_format
    if isinstance(given, JsonObjectFormat):
        return [Grammar(kind="json_object", field="response_format")]
    if isinstance(given, JsonSchemaFormat):
        schema = given.json_schema.schema
        return [Grammar(kind="json_schema", field="response_format", schema=schema)]
    return []


def _guided(request: SamplingFields) -> list[Grammar]:
    found = []
    if request.guided_json is not None:
        found.append(_json_schema("guided_json", request.guided_json))
    if request.guided_regex is not None:
        found.append(Grammar(kind="regex", field="guided_regex", regex=request.guided_regex))
    if request.guided_choice is not None:
        found.append(Grammar(kind="choice", field="guided_choice", choices=request.guided_choice))
    if request.guided_grammar is not None:
        found.append(Grammar(kind="lark", field="guided_grammar", lark=request.guided_grammar))
    if request.regex is not None:
        found.append(Grammar(kind="regex", field="regex", regex=request.regex))
    return found


def _structured_outputs(request: SamplingFields) -> list[Grammar]:
    field, given = "structured_outputs", request.structured_outputs
    if given is None:
        return []
    found = []
    if given.json is not None:
        found.append(_json_schema(field, given.json))
    if given.json_object:
        found.append(Grammar(kind="json_object", field=field))
    if given.regex is not None:
        found.append(Grammar(kind="regex", field=field, regex=given.regex))
    if given.choice is not None:
        found.append(Grammar(kind="choice", field=field, choices=given.choice))
    if given.grammar is not None:
        found.append(Grammar(kind="lark", field=field, lark=given.grammar))
    if not found:
        raise _refused(field, "none of its fields is set")
    return found


def _json_schema(field: str, given: str | dict[str, Any]) -> Grammar:
    """A schema, also as JSON text."""
    schema: Any = given
    if isinstance(given, str):
        try:
            schema = msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError):
            raise _refused(field, "the text is not JSON") from None
    if not isinstance(schema, dict):
        raise _refused(field, "a schema is an object")
    return Grammar(kind="json_schema", field=field, schema=schema)


def _refused(field: str, reason: str) -> RefusedError:
    return RefusedError(f"{field}: {reason}", field, "invalid_value")
