# ruff: noqa: E501
"""jinja2 set up as Hugging Face transformers sets it up, and our engine beside it."""

import copy
import json
import re
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ingle._core import render_template
from ingle.errors import ModelError, RefusedError


class RaisedError(Exception):
    """What `raise_exception` raises."""


class Generation(jinja2.ext.Extension):
    """A block that renders its body; transformers also notes where it stands."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller):
        return caller()


def raise_exception(message):
    raise RaisedError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    # Our `render_template` renders at the same time.
    env.globals["strftime_now"] = datetime.fromtimestamp(0, UTC).strftime
    return env


ENVIRONMENT = environment()


@dataclass
class Result:
    """What became of one rendering: `text`, `raised`, `failed` or `broken`, and the text or message."""

    kind: str
    text: str

    def same_as(self, other: "Result") -> bool:
        """Errors need no equal words, and may be found when compiling or when running."""
        if self.kind in ("text", "raised"):
            return self == other
        return other.kind in ("failed", "broken")


@lru_cache(maxsize=8)
def compiled(source: str) -> jinja2.Template:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ENVIRONMENT.from_string(source)


def by_jinja2(source: str, variables: dict[str, Any]) -> Result:
    try:
        template = compiled(source)
    except Exception as error:  # noqa: BLE001
        return Result("broken", repr(error))
    try:
        # Some filters of Jinja2 change the lists they are given.
        text = template.render(**copy.deepcopy(variables))
    except RaisedError as error:
        return Result("raised", str(error))
    except Exception as error:  # noqa: BLE001
        return Result("failed", repr(error))
    # Python prints where functions and generators lie; we do not.
    return Result("text", re.sub(r" at 0x[0-9a-f]+", "", text))


def by_us(source: str, variables: dict[str, Any]) -> Result:
    try:
        return Result("text", render_template(source, json.dumps(variables).encode()))
    except ModelError as error:
        return Result("broken", str(error))
    except RefusedError as error:
        message = str(error)
        refused = "chat template refused the messages: "
        if message.startswith(refused):
            return Result("raised", message.removeprefix(refused))
        return Result("failed", message)


def differences(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """What we render otherwise than jinja2 does."""
    wrong = []
    for source, variables in cases:
        wanted, got = by_jinja2(source, variables), by_us(source, variables)
        if not wanted.same_as(got):
            wrong.append(f"{source!r}\n  jinja2: {wanted}\n  ours:   {got}")
    return wrong
