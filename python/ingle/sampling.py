"""The sampling parameters of the Python API. Any thread; named as the HTTP fields are."""

import math
from typing import Any

import msgspec
from msgspec import Struct, field

from ingle.errors import RefusedError
from ingle.generation import GenerationRequest, Grammar, Output, Prompt, Sampling


class SamplingParams(Struct, frozen=True, kw_only=True):
    """What to ask of the model; None takes its default (generation_config.json).

    `logprobs` is the number of alternatives wanted with each token, 0 for the token's own alone.
    `max_tokens` None means the rest of the context. `top_k` -1 and 0 mean off. With `echo` the
    prompt comes first: in the text, and with `logprobs` in the log-probabilities, one entry a
    prompt token; the first token's is None. `max_tokens` 0 then gives the prompt alone.

    At most one of the `guided_` fields binds the answers, reasoning included:
    `guided_json` is a JSON schema as a mapping or as text ({"type": "object"} asks for any object),
    `guided_regex` matches the whole answer, `guided_choice` lists all of them, `guided_grammar` is
    in llguidance's dialect of Lark. None of `bad_words` stands in an answer; one that they leave no
    way on ends with the finish reason `content_filter`.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: list[int] | None = None
    logprobs: int | None = None
    echo: bool = False
    truncate_prompt_tokens: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    bad_words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Errors: RefusedError names a field of the wrong type."""
        for each in msgspec.structs.fields(type(self)):
            try:
                msgspec.convert(getattr(self, each.name), each.type)
            except msgspec.ValidationError as error:
                raise RefusedError(f"{each.name}: {error}", param=each.name) from None

    def request(self, prompt: Prompt) -> GenerationRequest:
        """The core's document for one prompt; deltas with token ids come back.

        Errors: RefusedError for a number that JSON cannot carry; the core checks the rest.
        """
        for name in FLOATS:
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise RefusedError(f"{name}: must be finite, not {value}", param=name)
        if not all(math.isfinite(bias) for bias in self.logit_bias.values()):
            raise RefusedError("logit_bias: every bias must be finite", param="logit_bias")
        sampling = {name: getattr(self, name) for name in SAMPLING_FIELDS}
        if self.top_k == -1:
            sampling["top_k"] = 0
        sampling["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        rest = {name: getattr(self, name) for name in REQUEST_FIELDS}
        rest["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        return GenerationRequest(
            prompts=[prompt],
            grammar=self.grammar(),
            sampling=Sampling(**sampling),
            output=Output(format="delta", stream=True, return_token_ids=True, echo=self.echo),
            **rest,
        )

    def grammar(self) -> Grammar | None:
        """What the answers must match. Errors: RefusedError if several fields say so."""
        found = []
        if self.guided_json is not None:
            found.append(json_grammar(self.guided_json))
        if self.guided_regex is not None:
            found.append(Grammar(kind="regex", field="guided_regex", regex=self.guided_regex))
        if self.guided_choice is not None:
            choices = self.guided_choice
            found.append(Grammar(kind="choice", field="guided_choice", choices=choices))
        if self.guided_grammar is not None:
            found.append(Grammar(kind="lark", field="guided_grammar", lark=self.guided_grammar))
        if len(found) > 1:
            first, second = found[0].field, found[1].field
            raise RefusedError(f"{second}: cannot be combined with {first}", param=second)
        return found[0] if found else None


def json_grammar(schema: dict[str, Any] | str) -> Grammar:
    """A JSON schema. Errors: RefusedError for what is not one."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise RefusedError(f"guided_json: no schema: {error}", param="guided_json") from None
    return Grammar(kind="json_schema", field="guided_json", schema=schema)


def names(struct: type[Struct]) -> set[str]:
    """Field names of a struct."""
    return {f.name for f in msgspec.structs.fields(struct)}


SAMPLING_FIELDS = names(Sampling) - {"prompt_logprobs"}  # Whole HTTP answers have them alone.
GRAMMAR_FIELDS = {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
REQUEST_FIELDS = names(SamplingParams) - SAMPLING_FIELDS - GRAMMAR_FIELDS - {"echo"}
FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
