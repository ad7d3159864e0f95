"""The sampling parameters of the Python API, named like the HTTP fields. Any thread."""

from typing import Any

import msgspec
from msgspec import Struct

from ingle.errors import RefusedError
from ingle.faults import fault_of
from ingle.fields import API_FIELDS, PLAIN
from ingle.generation import GenerationRequest, Grammar, Output, Prompt, Sampling
from ingle.json_values import check_json, refused


class SamplingParams(Struct, frozen=True, kw_only=True):
    """How to generate. None means the model's default (generation_config.json).

    With `echo`, the answer starts with the prompt's text. With `logprobs` too, the log-probs start
    with one entry per prompt token; the first token's is None. `max_tokens` 0 then returns the
    prompt alone. At most one `guided_` field may be set; it constrains the answer, reasoning
    included. A `guided_json` of {"type": "object"} allows any object.

    Errors: RefusedError names the field, what is allowed and what was given.
    """

    # Written by tools/write_fields.py from here on.
    n: int = 1
    """Number of answers for each prompt. A whole number from 1 to 128."""
    max_tokens: int | None = 16
    """Maximum length of the answer in tokens; None: the rest of the context. A whole number from 0
    to 2147483647."""
    min_tokens: int = 0
    """The answer has at least this many tokens. A whole number from 0 to 2147483647."""
    temperature: float | None = None
    """Higher values flatten the distribution; 0 always takes the most likely token. A number from 0
    to 2."""
    top_k: int | None = None
    """Samples from the k most likely tokens; 0 and -1 keep all. A whole number from -1 to
    2147483647."""
    top_p: float | None = None
    """Samples from the smallest set of tokens with at least this total probability; 1 keeps all. A
    number above 0 and at most 1."""
    min_p: float | None = None
    """Drops tokens less likely than this times the most likely token; 0 keeps all. A number from 0
    to 1."""
    top_n_sigma: float | None = None
    """Drops tokens whose logit is more than this many standard deviations of all logits below the
    best; 0 keeps all. A number from 0 to 100."""
    repetition_penalty: float | None = None
    """Values above 1 make tokens of the prompt and the answer less likely; 1 is off. A number from
    0.01 to 100."""
    presence_penalty: float | None = None
    """Subtracted once from the logit of each token that the answer already contains; 0 is off. A
    number from -2 to 2."""
    frequency_penalty: float | None = None
    """Subtracted from a token's logit once per occurrence in the answer so far; 0 is off. A number
    from -2 to 2."""
    seed: int | None = None
    """Seed of the random numbers. The same seed, prompt and settings give the same answer. A whole
    number from -9223372036854775808 to 9223372036854775807."""
    stop: str | list[str] = msgspec.field(default_factory=list)
    """A stop string, or a list of at most 64 stop strings. A string of 1 to 1024 characters or a
    list of at most 64 items."""
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    """Token ids that end the answer. A list of at most 128 items."""
    include_stop_str_in_output: bool = False
    """Keeps the stop string at the end of the answer."""
    ignore_eos: bool = False
    """Continues past the model's end tokens."""
    skip_special_tokens: bool = True
    """Leaves special tokens out of the answer's text. Default: true."""
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    """Values added to logits, by token id. An object of at most 1024 entries."""
    allowed_token_ids: list[int] | None = None
    """The answer may contain only these tokens. A list of 1 to 2097152 items."""
    logprobs: int | None = None
    """Log-probs of each token, with this many alternatives; 0 gives the token's own only. A whole
    number from 0 to 20."""
    echo: bool = False
    """Puts the prompt before the answer."""
    truncate_prompt_tokens: int | None = None
    """Keeps only the last N tokens of the prompt; -1: as many as fit. A whole number from -1 to
    2147483647."""
    priority: int = 0
    """Requests with a lower number run first. A whole number from -2147483648 to 2147483647."""
    cache_salt: str | None = None
    """Requests share cached prefixes only if their salt and tenant are the same. A string of at
    most 512 characters."""
    guided_json: dict[str, Any] | str | None = None
    """The answer is JSON that fits this schema. An object or a string."""
    guided_regex: str | None = None
    """The whole answer matches this regex, in the syntax of Rust's regex crate. A string of at most
    262144 characters."""
    guided_choice: list[str] | None = None
    """The answer is one of these texts. A list of at most 10000 items."""
    guided_grammar: str | None = None
    """The answer matches this grammar, in llguidance's dialect of Lark. A string of at most 262144
    characters."""
    bad_words: list[str] = msgspec.field(default_factory=list)
    """Texts that the answer after its reasoning never contains, however its tokens are cut. If no
    token is left, the answer ends with finish_reason content_filter. A list of at most 128
    items."""
    # End of what tools/write_fields.py writes.

    def __post_init__(self) -> None:
        """Errors: RefusedError names a field of the wrong type or out of range."""
        for name, kind in API_FIELDS.items():
            value = getattr(self, name)
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                raise fault_of(error, kind, value, name).refusal() from None
            except UnicodeEncodeError:
                raise refused(name, "holds half of a surrogate pair, not a character") from None
            if name in TEXT_FIELDS:
                check_json(value, name)

    def request(self, prompt: Prompt) -> GenerationRequest:
        """The core's document for one prompt; deltas with token ids come back."""
        sampling = {name: getattr(self, name) for name in SAMPLING_FIELDS}
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
        """What the answer must match. Errors: RefusedError if several `guided_` fields are set."""
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
    """A grammar from a JSON schema. Errors: RefusedError if it is not one."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            message = "guided_json: the text is not a schema: it must be a JSON object"
            raise RefusedError(message, param="guided_json") from None
    return Grammar(kind="json_schema", field="guided_json", schema=schema)


SAMPLING_FIELDS = (*PLAIN, "seed", "logit_bias", "allowed_token_ids", "logprobs")
GRAMMAR_FIELDS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
TEXT_FIELDS = frozenset({"stop", "bad_words", "cache_salt", *GRAMMAR_FIELDS})
REQUEST_FIELDS = API_FIELDS.keys() - {*SAMPLING_FIELDS, *GRAMMAR_FIELDS, "echo"}
