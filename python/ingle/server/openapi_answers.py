"""Response schemas for the OpenAPI document. Plain data, used at start.

The core writes most responses itself, so they have no Python type to generate schemas from. The
test tests/server/test_openapi.py compares real responses with these schemas. A property that is not
in `required` appears only if the request asks for it or it has a value. Clients must expect further
properties.
"""

from types import NoneType, UnionType
from typing import Any, Final, get_args

from ingle.fields import PLAIN
from ingle.server.render import HINTS, RENDERED_FIELDS

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
NULL: Final[Schema] = {"type": "null"}
NUMBER: Final[Schema] = {"type": "number"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
LIST: Final[Schema] = {"type": "array"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}


def ref(name: str) -> Schema:
    """Another schema of this file."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object: keys that are always there, and keys that may be."""
    return {
        "type": "object",
        "required": list(required),
        "properties": required | (optional or {}),
    }


def several(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, NULL]}


def one_of(*values: str) -> Schema:
    """Fixed words."""
    return {"type": "string", "enum": list(values)}


def always(word: str) -> Schema:
    """One word."""
    return {"const": word}


IDS = several(COUNT)
LOG_PROB = {"type": "number", "maximum": 0}
LOG_PROB_OR_NULL = {"type": ["number", "null"], "maximum": 0}
FINISH_REASON = one_of("stop", "length", "tool_calls", "content_filter")
STOP_REASON = {"type": ["string", "integer", "null"]}
"""The text or the token id of the request's `stop` that was met."""
PROMPT_LOG_PROB = record({"logprob": LOG_PROB, "rank": COUNT, "decoded_token": TEXT})
PROMPT_LOG_PROBS = several(or_null({"type": "object", "additionalProperties": PROMPT_LOG_PROB}))

TOKEN = {"token": TEXT, "logprob": LOG_PROB, "bytes": several(COUNT | {"maximum": 255})}
CHAT_LOG_PROBS = record(
    {
        "content": several(record(TOKEN | {"top_logprobs": several(record(TOKEN))})),
        "refusal": NULL,
    }
)
OFFSETS = (
    "Characters of this choice's text before each token. Without echo the text is the answer "
    "alone, so offsets begin at 0; with echo they count from the start of the prompt."
)
TEXT_LOG_PROBS = record(
    {
        "tokens": several(TEXT),
        "token_logprobs": several(LOG_PROB_OR_NULL),
        "top_logprobs": several(or_null({"type": "object", "additionalProperties": LOG_PROB})),
        "text_offset": several(COUNT) | {"description": OFFSETS},
    }
)
USAGE = record(
    {
        "prompt_tokens": COUNT,
        "total_tokens": COUNT,
        "completion_tokens": COUNT,
        "prompt_tokens_details": record({"cached_tokens": COUNT}),
    }
)


def head(kind: str) -> dict[str, Schema]:
    """What every answer of completions and chats begins with."""
    return {"id": TEXT, "object": always(kind), "created": COUNT, "model": TEXT}


ENDED = {"finish_reason": FINISH_REASON, "stop_reason": STOP_REASON}
GOING_ON = {"finish_reason": or_null(FINISH_REASON)}
ASKED_OF_TEXT = {"token_ids": IDS, "prompt_token_ids": IDS}

TEXT_CHOICE = {"index": COUNT, "text": TEXT, "logprobs": or_null(ref("CompletionLogProbs"))}
COMPLETION = record(
    head("text_completion")
    | {
        "choices": several(
            record(TEXT_CHOICE | ENDED, ASKED_OF_TEXT | {"prompt_logprobs": PROMPT_LOG_PROBS})
        ),
        "usage": ref("Usage"),
    }
)
COMPLETION_EVENT = record(
    head("text_completion")
    | {
        "choices": several(
            record(TEXT_CHOICE | GOING_ON, ASKED_OF_TEXT | {"stop_reason": STOP_REASON})
        )
    },
    {"usage": or_null(ref("Usage"))},
)

CALL = record(
    {
        "id": TEXT,
        "type": always("function"),
        "function": record({"name": TEXT, "arguments": TEXT}),
    }
)
CALL_PART = record(
    {"index": COUNT, "function": record({"arguments": TEXT}, {"name": TEXT})},
    {"id": TEXT, "type": always("function")},
)
MESSAGE = record(
    {"role": always("assistant"), "content": TEXT_OR_NULL, "refusal": NULL},
    {"reasoning_content": TEXT, "tool_calls": several(CALL)},
)
DELTA = record(
    {},
    {
        "role": always("assistant"),
        "content": TEXT,
        "reasoning_content": TEXT,
        "tool_calls": several(CALL_PART),
    },
)
CHAT_CHOICE = {"index": COUNT, "logprobs": or_null(ref("ChatLogProbs"))}
CHAT = record(
    head("chat.completion")
    | {
        "choices": several(record(CHAT_CHOICE | ENDED | {"message": MESSAGE}, {"token_ids": IDS})),
        "usage": ref("Usage"),
    },
    {"prompt_token_ids": IDS, "prompt_logprobs": PROMPT_LOG_PROBS},
)
CHAT_EVENT = record(
    head("chat.completion.chunk")
    | {
        "choices": several(
            record(
                CHAT_CHOICE | GOING_ON | {"delta": DELTA},
                {"token_ids": IDS, "stop_reason": STOP_REASON},
            )
        )
    },
    {"usage": or_null(ref("Usage")), "prompt_token_ids": IDS},
)

EMBEDDING = record(
    {
        "object": always("embedding"),
        "index": COUNT,
        "embedding": {"anyOf": [several(NUMBER), TEXT]},
    }
)
EMBEDDINGS = record(
    {
        "object": always("list"),
        "data": several(EMBEDDING),
        "model": TEXT,
        "usage": record({"prompt_tokens": COUNT, "total_tokens": COUNT}),
    }
)
TOKENS = record(
    {
        "count": COUNT,
        "max_model_len": COUNT,
        "tokens": IDS,
        "token_strs": or_null(several(TEXT)),
    }
)


def of_hint(hint: Any) -> Schema:
    """The schema of a field of the core's document, from its type."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    (schema,) = (SCHEMAS_OF_KINDS[kind] for kind in kinds if kind in SCHEMAS_OF_KINDS)
    # A map is null where it is empty.
    return or_null(schema) if NoneType in kinds or schema is OBJECT else schema


SCHEMAS_OF_KINDS: Final[dict[Any, Schema]] = {
    bool: BOOLEAN,
    int: {"type": "integer"},
    list[int]: IDS,
    list[str]: several(TEXT),
    dict[str, float]: OBJECT,
}
RENDERED_SAMPLING = record(
    {name: of_hint(HINTS[name]) for name in RENDERED_FIELDS}
    | {each.name: NUMBER for each in PLAIN.values()}
)
RENDERED = record(
    {
        "request_id": TEXT,
        "token_ids": IDS,
        "features": NULL,
        "sampling_params": RENDERED_SAMPLING,
        "model": TEXT,
        "stream": BOOLEAN,
        "cache_salt": TEXT_OR_NULL,
        "priority": {"type": "integer"},
        "kv_transfer_params": NULL,
    }
)
TOKENIZER = record(
    {
        "bos_token": TEXT_OR_NULL,
        "eos_token": TEXT_OR_NULL,
        "unk_token": TEXT_OR_NULL,
        "pad_token": TEXT_OR_NULL,
        "chat_template": TEXT_OR_NULL,
        "model_max_length": COUNT,
        "vocab_size": COUNT,
    },
    {"sep_token": TEXT, "cls_token": TEXT},
)
MODEL = record(
    {
        "id": TEXT,
        "object": always("model"),
        "created": COUNT,
        "owned_by": TEXT,
        "root": TEXT,
        "parent": NULL,
        "max_model_len": COUNT,
        "tasks": several(one_of("generate", "embed")),
        "status": one_of("loaded", "asleep", "stuck", "dead"),
        "load_format": one_of("auto", "dummy"),
        "default_sampling_params": record(
            {
                each.name: COUNT if each.is_whole else NUMBER
                for each in PLAIN.values()
                if each.from_model
            }
        ),
    }
)
STATUS = one_of("ok", "draining", "asleep", "stuck", "dead")
LAYERS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}
"""Layers of the lock-down by name: how each is in force, or why it is missing."""
LOAD = record(
    {
        "status": STATUS,
        "steps": COUNT,
        "running": COUNT,
        "waiting": COUNT,
        "in_system": COUNT,
        "capacity": COUNT,
        "standstill_s": NUMBER | {"minimum": 0},
        "ranks": COUNT,
        "hardening": record(
            {"mode": one_of("auto", "strict", "off"), "on": LAYERS, "missing": LAYERS}
        ),
    },
    {
        "engines": LIST,
        "memory": one_of("awake", "leaving", "asleep", "waking"),
        "models": {"type": "object"},
    },
)
# If the server has keys, a request without one does not see the load.
HEALTH: Final[Schema] = {"anyOf": [LOAD, record({"status": STATUS})]}
ERROR = record(
    {"error": record({"message": TEXT, "type": TEXT, "param": TEXT_OR_NULL, "code": TEXT_OR_NULL})}
)

SCHEMAS: Final[dict[str, Schema]] = {
    "Chat": CHAT,
    "ChatEvent": CHAT_EVENT,
    "ChatLogProbs": CHAT_LOG_PROBS,
    "Completion": COMPLETION,
    "CompletionEvent": COMPLETION_EVENT,
    "CompletionLogProbs": TEXT_LOG_PROBS,
    "Embeddings": EMBEDDINGS,
    "Error": ERROR,
    "Health": HEALTH,
    "Model": MODEL,
    "Models": record({"object": always("list"), "data": several(ref("Model"))}),
    "Document": record(
        {"openapi": TEXT, "info": OBJECT, "paths": OBJECT, "components": OBJECT, "security": LIST}
    ),
    "DetokenizedText": record({"prompt": TEXT}),
    "Ready": record({"status": STATUS}),
    "TokenizerInfo": TOKENIZER,
    "RenderedPrompt": RENDERED,
    "RenderedPrompts": several(ref("RenderedPrompt")),
    "Tokens": TOKENS,
    "Usage": USAGE,
    "Version": record({"version": TEXT}),
}
"""By the names that generated clients give their types."""
ANSWERS: Final[dict[str, str]] = {
    "/v1/completions": "Completion",
    "/v1/chat/completions": "Chat",
    "/v1/completions/render": "RenderedPrompts",
    "/v1/chat/completions/render": "RenderedPrompt",
    "/v1/responses": "Response",
    "/v1/messages": "MessageAnswer",
    "/v1/messages/count_tokens": "MessageTokens",
    "/v1/embeddings": "Embeddings",
    "/tokenize": "Tokens",
    "/detokenize": "DetokenizedText",
    "/tokenizer_info": "TokenizerInfo",
    "/v1/models": "Models",
    "/v1/models/{model}": "Model",
    "/health": "Health",
    "/ready": "Ready",
    "/version": "Version",
    "/openapi.json": "Document",
}
"""The JSON of a 200, by path."""


def event(payload: Schema, done: str | None = None) -> Schema:
    """A server-sent event whose data is JSON, or the word that ends a stream.

    Its form is that of OpenAPI 3.2, section "Server-Sent Events": tools read it in 3.1 too.
    """
    data: Schema = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": payload,
    }
    return record({"data": {"anyOf": [always(done), data]} if done else data}, {"event": TEXT})


EVENTS: Final[dict[str, Schema]] = {
    # A stream that fails says so in its last event.
    "/v1/completions": event({"anyOf": [ref("CompletionEvent"), ref("Error")]}, "[DONE]"),
    "/v1/chat/completions": event({"anyOf": [ref("ChatEvent"), ref("Error")]}, "[DONE]"),
    "/v1/responses": event(ref("ResponseEvent")),
    "/v1/messages": event(ref("MessageEvent")),
}
"""One event of a stream, by path."""
