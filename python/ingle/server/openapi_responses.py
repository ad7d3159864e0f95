"""Response schemas of /v1/responses; see openapi_answers.py. Plain data."""

from typing import Final, get_args

from ingle.server.openapi_answers import (
    BOOLEAN,
    COUNT,
    NULL,
    NUMBER,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    TOKEN,
    Schema,
    always,
    one_of,
    or_null,
    record,
    ref,
    several,
)
from ingle.server.protocol_fields import ReasoningEffort

LOG_PROBS = several(record(TOKEN | {"top_logprobs": several(record(TOKEN))}))
EFFORT: Final[Schema] = {"enum": [*get_args(ReasoningEffort), None]}
COUNT_OR_NULL: Final[Schema] = {"type": ["integer", "null"], "minimum": 0}
REASONING_PART = record({"type": always("reasoning_text"), "text": TEXT})
TEXT_PART = record(
    {
        "type": always("output_text"),
        "text": TEXT,
        "annotations": several(OBJECT),
        "logprobs": LOG_PROBS,
    }
)


def item(kind: str, fields: dict[str, Schema]) -> Schema:
    """An output item."""
    status = one_of("in_progress", "completed", "incomplete")
    return record({"id": TEXT, "type": always(kind), "status": status} | fields)


MESSAGE = item("message", {"role": always("assistant"), "content": several(TEXT_PART)})
REASONING = item("reasoning", {"summary": several(OBJECT), "content": several(REASONING_PART)})
CALL = item("function_call", {"call_id": TEXT, "name": TEXT, "arguments": TEXT})

USAGE = record(
    {
        "input_tokens": COUNT,
        "input_tokens_details": record({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": record({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
)
RESPONSE = record(
    {
        "id": TEXT,
        "object": always("response"),
        "created_at": COUNT,
        "model": TEXT,
        "status": one_of("in_progress", "completed", "incomplete", "failed"),
        "output": several(ref("ResponseItem")),
        "usage": or_null(USAGE),
        "error": or_null(record({"code": TEXT, "message": TEXT})),
        "incomplete_details": or_null(record({"reason": always("max_output_tokens")})),
        # The other fields repeat the request, with defaults for absent ones.
        "background": {"const": False},
        "instructions": TEXT_OR_NULL,
        "max_output_tokens": COUNT_OR_NULL,
        "max_tool_calls": COUNT_OR_NULL,
        "metadata": {"type": "object", "additionalProperties": TEXT},
        "parallel_tool_calls": BOOLEAN,
        "previous_response_id": NULL,
        "reasoning": record({"effort": EFFORT, "summary": NULL}),
        "service_tier": TEXT,
        "store": {"const": False},
        "temperature": NUMBER,
        "text": record({"format": OBJECT | {"required": ["type"]}}),
        "tool_choice": {"anyOf": [TEXT, OBJECT]},
        "tools": several(OBJECT),
        "top_logprobs": COUNT,
        "top_p": NUMBER,
        "truncation": always("disabled"),
    },
    {"completed_at": COUNT},
)

OF_ITEM = {"item_id": TEXT, "output_index": COUNT}
OF_PART = OF_ITEM | {"content_index": COUNT}
WHOLE_ITEM = {"output_index": COUNT, "item": ref("ResponseItem")}
WHOLE_PART = OF_PART | {"part": {"anyOf": [TEXT_PART, REASONING_PART]}}
FIELDS: Final[dict[str, dict[str, Schema]]] = {
    "created": {"response": ref("Response")},
    "in_progress": {"response": ref("Response")},
    "output_item.added": WHOLE_ITEM,
    "content_part.added": WHOLE_PART,
    "reasoning_text.delta": OF_PART | {"delta": TEXT},
    "reasoning_text.done": OF_PART | {"text": TEXT},
    "output_text.delta": OF_PART | {"delta": TEXT, "logprobs": LOG_PROBS},
    "output_text.done": OF_PART | {"text": TEXT, "logprobs": LOG_PROBS},
    "function_call_arguments.delta": OF_ITEM | {"delta": TEXT},
    "function_call_arguments.done": OF_ITEM | {"arguments": TEXT, "name": TEXT},
    "content_part.done": WHOLE_PART,
    "output_item.done": WHOLE_ITEM,
    "completed": {"response": ref("Response")},
    "incomplete": {"response": ref("Response")},
    "failed": {"response": ref("Response")},
}
"""What an event has besides its type and number, by its type without `response.`."""

SCHEMAS: Final[dict[str, Schema]] = {
    "Response": RESPONSE,
    "ResponseItem": {"anyOf": [MESSAGE, REASONING, CALL]},
    "ResponseEvent": {
        "anyOf": [
            record({"type": always(f"response.{kind}"), "sequence_number": COUNT} | fields)
            for kind, fields in FIELDS.items()
        ]
    },
}
