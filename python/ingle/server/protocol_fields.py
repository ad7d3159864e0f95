"""[1] Kinds of fields that several requests have, with their limits. Any thread; plain data.

What may be long stays JSON text, see raw.py.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

# Limits that several fields share. They bound memory before anything is queued; what the model
# itself allows (context, vocabulary) the core checks.
MOST_PROMPTS = 2048
MOST_IDS = 1 << 21
MOST_STOPS = 64
MOST_STOP_IDS = 128
MOST_CHOICES = 10_000
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]
BadWords = Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=128)]
TokenIdField = Annotated[int, Meta(ge=0, le=2**31 - 1)]
BiasKey = Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")]
BiasValue = Annotated[float, Meta(ge=-100, le=100)]
LogitBias = Annotated[dict[BiasKey, BiasValue], Meta(max_length=1024)]
StopTokenIds = Annotated[list[TokenIdField], Meta(max_length=MOST_STOP_IDS)]
StopList = Annotated[list[StopText | TokenIdField], Meta(max_length=MOST_STOPS + MOST_STOP_IDS)]
Stop: Any = StopText | StopList
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
ShortText = Annotated[str, Meta(max_length=512)]
ToolName = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_.:/-]{1,128}$"})]
"""The pattern is checked in structured.py: a decoder would ask Python's regex for each of many."""
LongText = Annotated[str, Meta(max_length=1 << 18)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


def or_null(kind: Any) -> dict[str, Any]:
    """The JSON schema of what convert.py reads a part as; null is as good as absent."""
    return msgspec.json.schema(kind | None)


# Parts that stay JSON text: nothing is checked by msgspec, the schemas are for the API document.
TEXT = {"type": "string"}
ID = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
IDS = {"type": "array", "items": ID, "maxItems": MOST_IDS}
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
ALLOWED = IDS | {"type": ["array", "null"], "minItems": 1}
CHOICES = {"type": ["array", "null"], "items": TEXT, "maxItems": MOST_CHOICES}
Anything = Annotated[Raw, Meta(extra_json_schema={})]
Text = Annotated[Raw, Meta(extra_json_schema=TEXT)]
TextOrNull = Annotated[Raw, Meta(extra_json_schema={"type": ["string", "null"]})]
Object = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
ObjectOrNull = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})]
Arguments = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "string", "null"]})]
SchemaOrText = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "string", "null"]})]
Choices = Annotated[Raw, Meta(extra_json_schema=CHOICES)]
Ids = Annotated[Raw, Meta(extra_json_schema=IDS)]
AllowedOrNull = Annotated[Raw, Meta(extra_json_schema=ALLOWED)]
StopOrNull = Annotated[Raw, Meta(extra_json_schema=or_null(Stop))]
StopIdsOrNull = Annotated[Raw, Meta(extra_json_schema=or_null(StopTokenIds))]
BiasOrNull = Annotated[Raw, Meta(extra_json_schema=or_null(LogitBias))]
Prompt = Annotated[Raw, Meta(extra_json_schema={"anyOf": PROMPT_FORMS})]
