"""[1] Types of fields that several requests share, with their limits. Any thread; plain data.

Long parts stay JSON text; see raw.py.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from ingle.fields import (
    INT32,
    LIMITS,
    AllowedTokenIds,
    GuidedChoice,
    GuidedJson,
    JsonLogitBias,
    StopText,
    StopTokenIds,
    TokenIdField,
    about,
)

# Limits that several fields share. They bound memory before anything is queued; what the model
# itself allows (context, vocabulary) the core checks.
MOST_PROMPTS = 2048
StopList = Annotated[
    list[StopText | TokenIdField], Meta(max_length=LIMITS.stops + LIMITS.stop_token_ids)
]
Stop: Any = Annotated[
    StopText | StopList,
    about(
        "A stop string, or a list of at most 64 stop strings. The list may also contain token ids.",
        off=([],),
    ),
]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
TOOL_NAME = {"pattern": "^[A-Za-z0-9_.:/-]{1,128}$"}
ToolName = Annotated[str, Meta(extra_json_schema=TOOL_NAME)]
"""The pattern is checked in structured.py: a decoder would ask Python's regex for each of many."""


ModelName = Annotated[
    str, about("The served model's name. Default: the served model.", max_length=1024)
]
RequestId = Annotated[
    str,
    about(
        "Returned as X-Request-Id. Need not be unique.",
        allowed="a string of at most 256 visible ASCII characters",
        max_length=256,
        pattern=r"^[\x21-\x7e]*$(?!\n)",
    ),
]
ParallelToolCalls = Annotated[
    bool,
    about(
        "Allows several calls in one answer. Default: true. No effect without tools.",
        off=(True, False),
    ),
]
TopLogprobs = Annotated[
    int, about("Number of alternatives for each token.", off=(0,), ge=0, le=LIMITS.logprobs)
]
MaxTokens = Annotated[
    int,
    about(
        "Maximum length of the answer in tokens. Default: the rest of the context.", ge=1, le=INT32
    ),
]
AddSpecialTokens = Annotated[
    bool,
    # Off where a chat template writes the special tokens itself.
    about("Lets the tokenizer add its begin token. Default: true.", off=(False,)),
]
AddGenerationPrompt = Annotated[
    bool,
    about("Ends the prompt with the start of an assistant turn. Default: true.", off=(True,)),
]
ContinueFinalMessage = Annotated[
    bool,
    about("Leaves the last message open; the answer continues it.", off=(False,)),
]


def json_part(kind: Any) -> Meta:
    """A part that stays JSON text and is read as `kind` later; null means absent."""
    return Meta(extra_json_schema=or_null(kind), extra={"shape": kind})


def or_null(kind: Any) -> dict[str, Any]:
    """The JSON schema of the type as which convert.py reads a part; null means absent."""
    return msgspec.json.schema(kind | None)


# Parts that stay JSON text: nothing is checked by msgspec, the schemas are for the API document.
TEXT = {"type": "string"}
ID = {"type": "integer", "minimum": 0, "maximum": INT32}
IDS = {"type": "array", "items": ID, "maxItems": LIMITS.ids}
PROMPT_FORMS = [
    TEXT,
    {"type": "array", "items": TEXT, "minItems": 1, "maxItems": MOST_PROMPTS},
    IDS | {"minItems": 1},
    {
        "type": "array",
        "items": IDS | {"minItems": 1},
        "minItems": 1,
        "maxItems": MOST_PROMPTS,
    },
]
Anything = Annotated[Raw, Meta(extra_json_schema={})]
NoEffect = Annotated[Raw, about("No effect.", extra_json_schema={})]
Text = Annotated[Raw, Meta(extra_json_schema=TEXT, extra={"allowed": "a string"})]
TextOrNull = Annotated[
    Raw, Meta(extra_json_schema={"type": ["string", "null"]}, extra={"allowed": "a string"})
]
TemplateKwargs = Annotated[
    Raw,
    about(
        "Extra variables for the model's chat template.",
        off=({},),
        allowed="an object",
        extra_json_schema={"type": ["object", "null"]},
    ),
]
TemplateName = Annotated[
    str,
    Meta(max_length=256),
    about(
        "Name of the model's chat template to use, such as `rag`. Without it, `tool_use` is used "
        "if the request has tools and the model has that template, otherwise `default`."
    ),
]
Object = Annotated[Raw, Meta(extra_json_schema={"type": "object"}, extra={"allowed": "an object"})]
ObjectOrNull = Annotated[
    Raw, Meta(extra_json_schema={"type": ["object", "null"]}, extra={"allowed": "an object"})
]
Arguments = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "string", "null"]})]
Ids = Annotated[Raw, Meta(extra_json_schema=IDS)]
SchemaOrText = Annotated[Raw, json_part(GuidedJson)]
Choices = Annotated[Raw, json_part(GuidedChoice)]
AllowedOrNull = Annotated[Raw, json_part(AllowedTokenIds)]
StopOrNull = Annotated[Raw, json_part(Stop)]
StopIdsOrNull = Annotated[Raw, json_part(StopTokenIds)]
BiasOrNull = Annotated[Raw, json_part(JsonLogitBias)]
Prompt = Annotated[
    Raw,
    about(
        "A text, texts, token ids or lists of token ids. Ids are used unchanged.",
        allowed="a string, a list of strings, a list of token ids or a list of such lists",
        extra_json_schema={"anyOf": PROMPT_FORMS},
    ),
]
