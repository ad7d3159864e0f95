"""The sampling parameters of the Python API. Any thread; named as the HTTP fields are."""

from typing import Any

import msgspec
from msgspec import Struct

from ingle.errors import RefusedError
from ingle.faults import fault_of
from ingle.fields import API_FIELDS, PLAIN
from ingle.generation import GenerationRequest, Grammar, Output, Prompt, Sampling


class SamplingParams(Struct, frozen=True, kw_only=True):
    """What to ask of the model; None takes its default (generation_config.json).

    With `echo` the prompt comes first: in the text, and with `logprobs` in the log-probabilities,
    one entry a prompt token; the first token's is None. `max_tokens` 0 then gives the prompt alone.
    At most one of the `guided_` fields binds the answers, reasoning included; a `guided_json` of
    {"type": "object"} asks for any object.

    Errors: RefusedError names a field whose value is not allowed, what is, and what was given.
    """

    # Written by tools/write_fields.py from here on.
    n: int = 1
    """Answers for each prompt. A whole number from 1 to 128."""
    max_tokens: int | None = 16
    """Most tokens of an answer; None: the rest of the context. A whole number from 0 to
    2147483647."""
    min_tokens: int = 0
    """An answer does not end before so many tokens. A whole number from 0 to 2147483647."""
    temperature: float | None = None
    """How flat the distribution is before a token is drawn; 0 takes the most likely token. A number
    from 0 to 2."""
    top_k: int | None = None
    """Draws from so many of the most likely tokens; 0 and -1 keep all. A whole number from -1 to
    2147483647."""
    top_p: float | None = None
    """Draws from the smallest set of tokens whose probability reaches this; 1 keeps all. A number
    above 0 and at most 1."""
    min_p: float | None = None
    """Drops tokens less likely than this times the most likely one; 0 keeps all. A number from 0 to
    1."""
    repetition_penalty: float | None = None
    """Above 1 makes tokens of prompt and answer less likely; 1 is off. A number from 0.01 to
    100."""
    presence_penalty: float | None = None
    """Taken once from the logit of every token that the answer already has; 0 is off. A number from
    -2 to 2."""
    frequency_penalty: float | None = None
    """Taken from the logit of a token as often as the answer already has it; 0 is off. A number
    from -2 to 2."""
    seed: int | None = None
    """Key of the random numbers: the same seed, prompt and settings give the same answer. A whole
    number from -9223372036854775808 to 9223372036854775807."""
    stop: str | list[str] = msgspec.field(default_factory=list)
    """A text that ends an answer, or a list of at most 64 of them. A string of 1 to 1024 characters
    or a list of at most 64 items."""
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    """Tokens that end an answer. A list of at most 128 items."""
    include_stop_str_in_output: bool = False
    """Keeps the text that ended an answer at its end."""
    ignore_eos: bool = False
    """Goes on through the model's own end tokens."""
    skip_special_tokens: bool = True
    """Leaves special tokens out of the answer's text; default true."""
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    """Numbers added to the logits of tokens, by token id. An object of at most 1024 entries."""
    allowed_token_ids: list[int] | None = None
    """The only tokens that an answer may have. A list of 1 to 2097152 items."""
    logprobs: int | None = None
    """Log-probabilities: so many alternatives with each token, 0 for the token's own alone. A whole
    number from 0 to 20."""
    echo: bool = False
    """Puts the prompt in front of the answer."""
    truncate_prompt_tokens: int | None = None
    """Keeps only so many of the prompt's last tokens; -1: as many as fit. A whole number from -1 to
    2147483647."""
    priority: int = 0
    """A request with a lower number runs first. A whole number from -2147483648 to 2147483647."""
    cache_salt: str | None = None
    """Requests share cached prefixes only if this and the tenant are equal. A string of at most 512
    characters."""
    guided_json: dict[str, Any] | str | None = None
    """A JSON schema that answers fit. An object or a string."""
    guided_regex: str | None = None
    """A regex, in the syntax of Rust's crate, that matches the whole of each answer. A string of at
    most 262144 characters."""
    guided_choice: list[str] | None = None
    """Each answer is one of these texts. A list of at most 10000 items."""
    guided_grammar: str | None = None
    """A grammar in llguidance's dialect of Lark. A string of at most 262144 characters."""
    bad_words: list[str] = msgspec.field(default_factory=list)
    """None of these stands in an answer after its reasoning, however its tokens are cut. An answer
    that they leave no way on ends with the finish reason content_filter. A list of at most 128
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
        except (msgspec.DecodeError, RecursionError):
            message = "guided_json: the text is not a schema: it must be a JSON object"
            raise RefusedError(message, param="guided_json") from None
    return Grammar(kind="json_schema", field="guided_json", schema=schema)


SAMPLING_FIELDS = (*PLAIN, "seed", "logit_bias", "allowed_token_ids", "logprobs")
GRAMMAR_FIELDS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
REQUEST_FIELDS = API_FIELDS.keys() - {*SAMPLING_FIELDS, *GRAMMAR_FIELDS, "echo"}
