"""Writes what is made from the definitions of request fields and of settings: the fields of
`ingle.SamplingParams`, the arguments of `ingle.Engine` (both between markers) and docs/FIELDS.md.

`make fields` runs it after a change of rust/core/src/sampling.rs, python/ingle/fields.py, the
request types or python/ingle/config.py. With --check it only says whether all is up to date.
"""

import dataclasses
import json
import sys
import textwrap
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect

from ingle.config import Settings, flag_name, names, plain_type
from ingle.faults import alternatives, one_of, type_info, words_of
from ingle.fields import API_FIELDS, PLAIN
from ingle.server.embeddings import EmbeddingRequest
from ingle.server.protocol import ChatRequest, CompletionRequest
from ingle.server.protocol_anthropic import MessagesRequest
from ingle.server.protocol_responses import ResponsesRequest
from ingle.server.unknown import off_of

ROOT = Path(__file__).resolve().parents[1]
SAMPLING = ROOT / "python/ingle/sampling.py"
ENGINE = ROOT / "python/ingle/engine.py"
PAGE = ROOT / "docs/FIELDS.md"
BEGIN = "# Written by tools/write_fields.py from here on.\n"
END = "# End of what tools/write_fields.py writes.\n"
ENDPOINTS = {
    "completions": CompletionRequest,
    "chat": ChatRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
    "embeddings": EmbeddingRequest,
}
# How the fields that are not plain look in `ingle.SamplingParams`.
DECLARATIONS = {
    "n": "int = 1",
    "max_tokens": "int | None = 16",
    "min_tokens": "int = 0",
    "seed": "int | None = None",
    "stop": "str | list[str] = msgspec.field(default_factory=list)",
    "stop_token_ids": "list[int] = msgspec.field(default_factory=list)",
    "include_stop_str_in_output": "bool = False",
    "ignore_eos": "bool = False",
    "skip_special_tokens": "bool = True",
    "logit_bias": "dict[int, float] = msgspec.field(default_factory=dict)",
    "allowed_token_ids": "list[int] | None = None",
    "logprobs": "int | None = None",
    "echo": "bool = False",
    "truncate_prompt_tokens": "int | None = None",
    "priority": "int = 0",
    "cache_salt": "str | None = None",
    "guided_json": "dict[str, Any] | str | None = None",
    "guided_regex": "str | None = None",
    "guided_choice": "list[str] | None = None",
    "guided_grammar": "str | None = None",
    "bad_words": "list[str] = msgspec.field(default_factory=list)",
}
INTRODUCTION = """# Request fields

`make fields` writes this page, and a test compares it with the code.
[Decision 0060](decisions/0060-request-fields.md) says where a field is defined,
[CONTRIBUTING](../CONTRIBUTING.md) how to add one.

`null` means the same as an absent field. An endpoint that lacks a field accepts it with a value
that means "off" and refuses any other value by name. `--unknown-fields warn` logs and counts such
a field instead of refusing it.

## Plain sampling fields

All of them are available on completions, chat, responses and messages, in `ingle.SamplingParams`
and as flags of `ingle generate` and `ingle chat`. A default with a star is replaced by the model's
own if its generation_config.json has one.

| field | allowed | default | off | meaning |
|---|---|---|---|---|
"""
OTHERS = """
## All other fields

| field | allowed | off | available in | meaning |
|---|---|---|---|---|
"""


def description(given: inspect.Type) -> str:
    """What the annotation says for users."""
    match given:
        case inspect.Metadata(type=inner, extra_json_schema=schema, extra=extra):
            if schema and "description" in schema:
                return str(schema["description"])
            return description(type_info(extra["shape"]) if extra and "shape" in extra else inner)
        case inspect.UnionType(types=several):
            return next((text for each in several if (text := description(each))), "")
    return ""


def allowed(given: inspect.Type) -> str:
    """The values, null aside."""
    kinds = list(dict.fromkeys(words_of(list(alternatives(given)))))
    return one_of([each for each in kinds if each != "null"])


def sampling_block() -> str:
    """The fields of `SamplingParams`, with their documentation."""
    lines = []
    for name, kind in API_FIELDS.items():
        info = type_info(kind)
        declaration = DECLARATIONS.get(name) or f"{PLAIN[name].number().__name__} | None = None"
        values = allowed(info)
        range_text = "" if values == "true or false" else f" {capitalised(values)}."
        wrapped = textwrap.wrap(
            f'"""{description(info)}{range_text}"""', 96, break_on_hyphens=False
        )
        lines += [f"{name}: {declaration}", *wrapped]
    return textwrap.indent("\n".join(lines) + "\n", "    ")


def capitalised(text: str) -> str:
    """With a large first letter."""
    return text[:1].upper() + text[1:]


def page() -> str:
    """docs/FIELDS.md."""
    rows = []
    for field in PLAIN.values():
        star = "\\*" if field.from_model else ""
        off = ", ".join(f"{value:g}" for value in field.off) or "-"
        default = f"{field.default:g}{star}"
        rows.append(f"| `{field.name}` | {field.allowed} | {default} | {off} | {field.about} |\n")
    return INTRODUCTION + "".join(rows) + OTHERS + "".join(other_rows())


def other_rows() -> list[str]:
    """A row for each field and each meaning that it has somewhere."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for path, endpoint in ENDPOINTS.items():
        for field in msgspec.structs.fields(endpoint):
            name = field.encode_name
            if name not in PLAIN:
                info = type_info(field.type)
                off = ", ".join(msgspec.json.encode(each).decode() for each in off_of(info)) or "-"
                row = (name, cell(allowed(info)), cell(off), cell(description(info)))
                rows.setdefault(row, []).append(path)
    for name in API_FIELDS:
        for row, paths in rows.items():
            if row[0] == name:
                paths.append("Python")
                break
    return [
        f"| `{name}` | {values} | {off} | {', '.join(paths)} | {text} |\n"
        for (name, values, off, text), paths in sorted(rows.items())
    ]


def cell(text: str) -> str:
    """Text that a table can hold."""
    return text.replace("|", "\\|")


def engine_block() -> str:
    """The arguments of `Engine` and its docstring."""
    settings = [each for each in dataclasses.fields(Settings) if each.name in names("engine")]
    arguments = ["model: str,", "*,"]
    entries = [entry("model", "local Hugging Face folder or .gguf file, or demo.")]
    for each in settings:
        default = json.dumps(each.default) if isinstance(each.default, str) else each.default
        arguments.append(
            f"{each.name}: {TYPES.get(each.name) or type_name(each.type)} = {default},"
        )
        entries.append(entry(each.name, meaning(each)))
    return "\n".join(
        [
            *(f"        {each}" for each in arguments),
            "    ) -> None:",
            '        """Loads the model; blocks until it can serve.',
            "",
            "        Args:",
            *entries,
            "",
            "        Raises:",
            "            ConfigError: an argument is not what it must be; the message names it.",
            "            ModelError: the message names the setting, or the file and the field.",
            '        """',
            "",
        ]
    )


def entry(name: str, text: str) -> str:
    """One argument of a docstring."""
    return textwrap.fill(
        f"{name}: {text}",
        100,
        initial_indent=" " * 12,
        subsequent_indent=" " * 16,
        break_on_hyphens=False,
    )


def meaning(setting: "dataclasses.Field[Any]") -> str:
    """A setting's help for a caller in Python, with its range."""
    text = setting.metadata["help"]
    for name in names("engine"):
        text = text.replace(flag_name(name), name) if "_" in name else text
    values = allowed(type_info(setting.type))
    if setting.default is True:
        return f"False: {text}."
    if values in ("true or false", "a string", "a path"):
        return f"{text}."
    return f"{text}. {capitalised(values)}."


TYPES = {"sim_speed": "float | str | None", "kv_events_config": "dict[str, Any] | str | None"}
"""What the constructor takes of settings that are texts on the command line."""


def type_name(kind: Any) -> str:
    """A type as the source has it, without its range."""
    plain = plain_type(kind)
    if get_origin(plain) is Literal:
        text = f"Literal[{', '.join(json.dumps(value) for value in get_args(plain))}]"
    else:
        text = "str | Path" if plain is Path else plain.__name__
    return f"{text} | None" if type(None) in get_args(kind) else text


def with_block(path: Path, block: str) -> str:
    """The file as it must be."""
    before, rest = path.read_text().split(BEGIN)
    indent = before[before.rindex("\n") + 1 :]
    return f"{before}{BEGIN}{block}{indent}{END}{rest.split(END)[1]}"


def main() -> int:
    """Writes the files, or compares them."""
    wanted = {
        SAMPLING: with_block(SAMPLING, sampling_block()),
        ENGINE: with_block(ENGINE, engine_block()),
        PAGE: page(),
    }
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)}: not up to date; run `make fields`")
        else:
            path.write_text(wanted[path])
            print(f"{path.relative_to(ROOT)}: written")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
