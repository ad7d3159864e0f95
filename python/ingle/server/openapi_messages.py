"""Response schemas of /v1/messages; see openapi_answers.py. Plain data."""

from typing import Final

from ingle.server.openapi_answers import (
    COUNT,
    NULL,
    TEXT,
    TEXT_OR_NULL,
    Schema,
    always,
    one_of,
    record,
    ref,
    several,
)

STOP_REASON = one_of(
    *("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"),
    "model_context_window_exceeded",
)
USAGE = record(
    {
        "input_tokens": COUNT,
        "cache_creation_input_tokens": COUNT,
        "cache_read_input_tokens": COUNT,
        "output_tokens": COUNT,
        "output_tokens_details": record({"thinking_tokens": COUNT}),
    }
)
TEXT_BLOCK = record({"type": always("text"), "text": TEXT})
THINKING_BLOCK = record({"type": always("thinking"), "thinking": TEXT, "signature": TEXT})
INPUT: Final[Schema] = {"description": "An object, unless the model wrote other JSON."}
CALL_BLOCK = record({"type": always("tool_use"), "id": TEXT, "name": TEXT, "input": INPUT})


def message(stop_reason: Schema) -> Schema:
    """A message, whole or at its start."""
    return record(
        {
            "id": TEXT,
            "type": always("message"),
            "role": always("assistant"),
            "model": TEXT,
            "content": several(ref("MessageBlock")),
            "stop_reason": stop_reason,
            "stop_sequence": TEXT_OR_NULL,
            "usage": USAGE,
        }
    )


DELTAS: Final[list[Schema]] = [
    record({"type": always("text_delta"), "text": TEXT}),
    record({"type": always("thinking_delta"), "thinking": TEXT}),
    record({"type": always("signature_delta"), "signature": TEXT}),
    record({"type": always("input_json_delta"), "partial_json": TEXT}),
]
ERROR = record({"type": TEXT, "message": TEXT})
FIELDS: Final[dict[str, dict[str, Schema]]] = {
    "message_start": {"message": message(NULL)},
    "content_block_start": {"index": COUNT, "content_block": ref("MessageBlock")},
    "content_block_delta": {"index": COUNT, "delta": {"anyOf": DELTAS}},
    "content_block_stop": {"index": COUNT},
    "message_delta": {
        "delta": record({"stop_reason": STOP_REASON, "stop_sequence": TEXT_OR_NULL}),
        "usage": USAGE,
    },
    "message_stop": {},
    "ping": {},
    "error": {"error": ERROR},
}
"""What an event has besides its type, by its type."""

SCHEMAS: Final[dict[str, Schema]] = {
    "MessageAnswer": message(STOP_REASON),
    "MessageBlock": {"anyOf": [TEXT_BLOCK, THINKING_BLOCK, CALL_BLOCK]},
    "MessageError": record({"type": always("error"), "error": ERROR, "request_id": TEXT}),
    "MessageEvent": {
        "anyOf": [record({"type": always(kind)} | fields) for kind, fields in FIELDS.items()]
    },
    "MessageTokens": record({"input_tokens": COUNT}),
}
