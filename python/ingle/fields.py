"""[1] The fields of a request: type, range, meaning, and the value that means "off".

Any thread; plain data. The plain sampling fields come from the core's table
(rust/core/src/sampling.rs); the others that HTTP and the Python API share are defined here. Request
types, checks, `/openapi.json`, flags and docs/FIELDS.md are made from both (decision 0060). Fields
that only HTTP has are in server/protocol.py.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ingle import _core


def about(
    text: str,
    *,
    off: tuple[object, ...] = (),
    allowed: str | None = None,
    shape: Any = None,
    **limits: Any,
) -> Meta:
    """What is known of a field.

    `text` is for users. `off` lists the values that mean the same as an absent field, null aside.
    `allowed` says in words what errors cannot make from the type, as a pattern. `shape` is the type
    of a part that stays JSON text. `limits` are msgspec's.
    """
    extra = {"off": off, "allowed": allowed, "shape": shape}
    known = {name: value for name, value in extra.items() if value}
    return Meta(description=text, extra=known, **limits)


class SamplingField(Struct, frozen=True):
    """A plain sampling field: one number. See `SamplingField` in rust/core/src/sampling.rs."""

    name: str
    about: str
    is_whole: bool
    least: float
    excludes_least: bool
    most: float
    allowed: str
    default: float
    """The value if neither the request nor the model sets one."""
    off: list[float]
    from_model: bool
    """Whether generation_config.json may set the default."""

    def number(self) -> type[int] | type[float]:
        """The type of its values."""
        return int if self.is_whole else float

    def kind(self) -> Any:
        """The type with its range, for msgspec."""
        number = self.number()
        least = {"gt" if self.excludes_least else "ge": number(self.least)}
        meta = about(
            self.about,
            off=self.off_values(),
            allowed=self.allowed,
            le=number(self.most),
            **least,
        )
        return Annotated[number, meta]

    def off_values(self) -> tuple[object, ...]:
        """Each value that means "off", in every way that JSON can write it."""
        whole = [int(value) for value in self.off]
        return tuple(whole if self.is_whole else [*whole, *self.off])


PLAIN: dict[str, SamplingField] = {
    each.name: each
    for each in msgspec.json.decode(_core.sampling_fields(), type=list[SamplingField])
}
"""The plain sampling fields by name."""


def plain_struct(name: str, text: str, base: type[Struct], checked: bool, **options: Any) -> Any:
    """A struct like `base` that also has the plain sampling fields, all optional.

    `checked`: whether decoding refuses what is out of range.
    """
    fields = [
        (each.name, each.kind() | None if checked else each.number() | None, None)
        for each in PLAIN.values()
    ]
    return msgspec.defstruct(name, fields, bases=(base,), namespace={"__doc__": text}, **options)


class Limits(Struct, frozen=True):
    """The core's limits of what is not a plain sampling field."""

    n: int
    stops: int
    stop_chars: int
    stop_token_ids: int
    logprobs: int
    logit_bias: int
    bias: float
    ids: int
    bad_words: int
    bad_word_chars: int
    choices: int


LIMITS = msgspec.json.decode(_core.request_limits(), type=Limits)
INT32 = 2**31 - 1

ShortText = Annotated[str, Meta(max_length=512)]
LongText = Annotated[str, Meta(max_length=1 << 18)]
TokenIdField = Annotated[int, Meta(ge=0, le=INT32)]
Count = Annotated[int, Meta(ge=0, le=INT32)]
StopText = Annotated[str, Meta(min_length=1, max_length=LIMITS.stop_chars)]
BadWord = Annotated[str, Meta(min_length=1, max_length=LIMITS.bad_word_chars)]
BiasValue = Annotated[float, Meta(ge=-LIMITS.bias, le=LIMITS.bias)]

N = Annotated[int, about("Number of answers for each prompt.", off=(1,), ge=1, le=LIMITS.n)]
MinTokens = Annotated[
    int, about("The answer has at least this many tokens.", off=(0,), ge=0, le=INT32)
]
Seed = Annotated[
    int,
    about(
        "Seed of the random numbers. The same seed, prompt and settings give the same answer.",
        ge=-(2**63),
        le=2**63 - 1,
    ),
]
Stop = Annotated[
    StopText | Annotated[list[StopText], Meta(max_length=LIMITS.stops)],
    about(f"A stop string, or a list of at most {LIMITS.stops} stop strings.", off=([],)),
]
StopTokenIds = Annotated[
    list[TokenIdField],
    about("Token ids that end the answer.", off=([],), max_length=LIMITS.stop_token_ids),
]
IncludeStop = Annotated[
    bool, about("Keeps the stop string at the end of the answer.", off=(False,))
]
IgnoreEos = Annotated[bool, about("Continues past the model's end tokens.", off=(False,))]
SkipSpecialTokens = Annotated[
    bool, about("Leaves special tokens out of the answer's text. Default: true.", off=(True,))
]
BIAS = about("Values added to logits, by token id.", off=({},), max_length=LIMITS.logit_bias)
LogitBias = Annotated[dict[TokenIdField, BiasValue], BIAS]
BiasKey = Annotated[
    str, Meta(pattern=r"^[0-9]{1,9}$", extra={"allowed": "a token id in decimal digits"})
]
JsonLogitBias = Annotated[dict[BiasKey, BiasValue], BIAS]
AllowedTokenIds = Annotated[
    list[TokenIdField],
    about("The answer may contain only these tokens.", min_length=1, max_length=LIMITS.ids),
]
Logprobs = Annotated[
    int,
    about(
        "Log-probs of each token, with this many alternatives; 0 gives the token's own only.",
        off=(False,),
        ge=0,
        le=LIMITS.logprobs,
    ),
]
Echo = Annotated[bool, about("Puts the prompt before the answer.", off=(False,))]
TruncatePromptTokens = Annotated[
    int,
    about("Keeps only the last N tokens of the prompt; -1: as many as fit.", ge=-1, le=INT32),
]
Priority = Annotated[
    int, about("Requests with a lower number run first.", off=(0,), ge=-(2**31), le=INT32)
]
CacheSalt = Annotated[
    str,
    about(
        "Requests share cached prefixes only if their salt and tenant are the same.",
        off=("",),
        max_length=512,
    ),
]
GuidedRegex = Annotated[
    str,
    about(
        "The whole answer matches this regex, in the syntax of Rust's regex crate.",
        max_length=1 << 18,
    ),
]
GuidedChoice = Annotated[
    list[str], about("The answer is one of these texts.", max_length=LIMITS.choices)
]
GuidedGrammar = Annotated[
    str,
    about("The answer matches this grammar, in llguidance's dialect of Lark.", max_length=1 << 18),
]
GuidedJson = Annotated[dict[str, Any] | str, about("The answer is JSON that fits this schema.")]
BadWords = Annotated[
    list[BadWord],
    about(
        "Texts that the answer after its reasoning never contains, however its tokens are cut. If "
        "no token is left, the answer ends with finish_reason content_filter.",
        off=([],),
        max_length=LIMITS.bad_words,
    ),
]

API_FIELDS: dict[str, Any] = {
    "n": N,
    "max_tokens": Annotated[
        Count | None,
        about("Maximum length of the answer in tokens; None: the rest of the context."),
    ],
    "min_tokens": MinTokens,
    **{name: each.kind() | None for name, each in PLAIN.items()},
    "seed": Seed | None,
    "stop": Stop,
    "stop_token_ids": StopTokenIds,
    "include_stop_str_in_output": IncludeStop,
    "ignore_eos": IgnoreEos,
    "skip_special_tokens": SkipSpecialTokens,
    "logit_bias": LogitBias,
    "allowed_token_ids": AllowedTokenIds | None,
    "logprobs": Logprobs | None,
    "echo": Echo,
    "truncate_prompt_tokens": TruncatePromptTokens | None,
    "priority": Priority,
    "cache_salt": CacheSalt | None,
    "guided_json": GuidedJson | None,
    "guided_regex": GuidedRegex | None,
    "guided_choice": GuidedChoice | None,
    "guided_grammar": GuidedGrammar | None,
    "bad_words": BadWords,
}
"""What `ingle.SamplingParams` has, with the type of each value."""
