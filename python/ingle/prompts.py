"""[1] What callers of the Python API may give: prompts, messages, token ids. Any thread.

Every value is checked here, so that an error names its place; the core would find it in a document
that the caller never sees.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from ingle.content import joined_text
from ingle.generation import Chat, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from ingle.json_values import INT64, check_json, not_allowed, refused, valid_text
from ingle.outputs import PromptLike
from ingle.sampling import SamplingParams


def split_prompts(prompts: PromptLike | Sequence[PromptLike]) -> list[PromptLike]:
    """The prompts as a list. A list of ids or of messages is one prompt."""
    if isinstance(prompts, BYTES | Mapping) or not isinstance(prompts, Sequence):
        kind = type(prompts).__name__
        allowed = "text, token ids, chat messages or a list of them"
        raise refused("prompts", f"must be {allowed}, not {kind}")
    if isinstance(prompts, str) or (prompts and (is_id(prompts[0]) or is_message(prompts[0]))):
        return [prompts]  # type: ignore[list-item] # The first item shows which kind it is.
    return list(prompts)  # type: ignore[arg-type] # As above.


def params_of_each(
    prompts: list[PromptLike], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    """The parameters of each prompt. Errors: RefusedError if the numbers differ."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * len(prompts)
    each: list[Any] = [params]
    if isinstance(params, Sequence) and not isinstance(params, BYTES):
        each = list(params)
    for found in each:
        if not isinstance(found, SamplingParams):
            kind = type(found).__name__
            raise refused(
                "sampling_params", f"must be SamplingParams or a list of them, not {kind}"
            )
    if len(each) != len(prompts):
        counts = f"got {len(each)} for {len(prompts)}"
        raise refused("sampling_params", f"must have one entry per prompt, {counts}")
    return each


def as_prompt(
    prompt: PromptLike,
    add_special_tokens: bool = True,
    template_name: str | None = None,
) -> Prompt:
    """The core's form of one prompt. Errors: RefusedError names the value that is wrong."""
    if type(add_special_tokens) is not bool:
        raise not_allowed("add_special_tokens", "True or False", add_special_tokens)
    if template_name is not None and not isinstance(template_name, str):
        raise not_allowed("chat_template_name", "a string", template_name)
    if isinstance(prompt, str):
        items: list[Any] = []
        form: Prompt = TextPrompt(valid_text(prompt, "prompt"), add_special_tokens)
    elif isinstance(prompt, BYTES | Mapping) or not isinstance(prompt, Sequence):
        kind = type(prompt).__name__
        raise refused("prompt", f"must be text, token ids or chat messages, not {kind}")
    else:
        items = list(prompt)
        if items and is_message(items[0]):
            messages = [message(item, f"messages[{i}]") for i, item in enumerate(items)]
            return ChatPrompt(Chat(messages=messages, template_name=template_name))
        form = TokenPrompt(ids_of(items, "prompt", "a token id or a message"))
    if template_name is not None:
        raise refused("chat_template_name", "only allowed with chat messages")
    return form


def ids_of(given: Iterable[Any], place: str, allowed: str = "a token id") -> list[int]:
    """Token ids as a list of int: anything that counts as an index, a numpy integer too.

    Errors: RefusedError names the entry that is none, or does not fit into 64 bits.
    """
    is_many = isinstance(given, Iterable) and not isinstance(given, str | BYTES | Mapping | Set)
    if not is_many:
        raise not_allowed(place, "a list of token ids", given)
    ids = list(given)
    for i, item in enumerate(ids):
        if type(item) is int:
            continue
        if not is_id(item) or isinstance(item, bool):
            raise not_allowed(f"{place}[{i}]", allowed if i == 0 else "a token id", item)
        ids[i] = operator.index(item)
    if ids and (min(ids) < -INT64 or max(ids) >= INT64):
        i = next(i for i, item in enumerate(ids) if not -INT64 <= item < INT64)
        raise not_allowed(f"{place}[{i}]", "a token id", ids[i])
    return ids


def is_id(item: Any) -> bool:
    """Whether the item is of a type that counts as a whole number."""
    return hasattr(type(item), "__index__")


def is_message(item: Any) -> bool:
    """Whether the item is of a type that a chat message has."""
    return isinstance(item, Mapping)


def message(given: Any, place: str) -> dict[str, Any]:
    """A message as chat templates expect it, with its content as one text.

    Errors: RefusedError names the field.
    """
    if not is_message(given):
        raise not_allowed(place, 'a message, as {"role": "user", "content": "x"}', given)
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str):
        raise not_allowed(f"{place}.role", "a string", role)
    if isinstance(content, str) or (content is None and role == "assistant"):
        complete = dict(given)
    elif isinstance(content, list):
        complete = {**given, "content": joined_text(content, f"{place}.content")}
    else:
        raise not_allowed(f"{place}.content", "a string or a list of text parts", content)
    check_json(complete, place)
    return complete


BYTES = bytes | bytearray | memoryview
