"""Fetches models as the user that `ingle serve --user` names, in a process of its own.

Main thread, before any other thread starts. What a store sends is read without root's rights, and
the files belong to the user who then serves them.
"""

import dataclasses
import json
import os
from typing import Any

from ingle.errors import ConfigError, IngleError, ModelError
from ingle.model_set import ModelSet
from ingle.server.forked import fork
from ingle.server.guard import adopt_home
from ingle.sources import local_set


def local_set_as(models: ModelSet, user: tuple[int, int]) -> ModelSet:
    """`local_set` with the rights of this user and group. Blocking.

    Errors: ConfigError, ModelError.
    """
    readable, writable = os.pipe()

    def answer_and_end() -> None:
        os.close(readable)
        with open(writable, "w") as pipe:
            json.dump(fetch(models, user), pipe)

    child = fork(answer_and_end)
    os.close(writable)
    with open(readable, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    try:
        found = json.loads(answer)
    except ValueError:
        code = os.waitstatus_to_exitcode(status)
        raise ModelError(f"the process that fetches models ended with code {code}") from None
    if "error" in found:
        raise (ConfigError if found["is_config"] else ModelError)(found["error"])
    entries = [
        dataclasses.replace(
            entry, name=name, settings=dataclasses.replace(entry.settings, model=model)
        )
        for entry, (name, model) in zip(models, found["models"], strict=True)
    ]
    return dataclasses.replace(models, entries=tuple(entries))


def fetch(models: ModelSet, user: tuple[int, int]) -> dict[str, Any]:
    """Names and places of the models, or why there are none."""
    uid, gid = user
    try:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        adopt_home(uid)
        local = local_set(models)
    except IngleError as error:
        return {"error": str(error), "is_config": isinstance(error, ConfigError)}
    except OSError as error:
        return {"error": f"the models cannot be fetched: {error}", "is_config": False}
    return {"models": [(entry.name, entry.settings.model) for entry in local]}
