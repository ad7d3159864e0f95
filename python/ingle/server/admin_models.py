"""The routes of the admin socket for single models, where they make room for each other.

Event loop. `unload` takes a model's weights and KV pool out of memory. Files, tokenizer and threads
of every model stay, since a locked process could not open them again.
"""

from typing import Any

from aiohttp import web

from ingle.errors import RefusedError
from ingle.server.admin_query import check_names
from ingle.server.models import Models, ServedModel
from ingle.server.status import json_response


class ModelRoutes:
    """The handlers for the models of one server."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Registers the routes. Names of models may have slashes."""
        router.add_get("/models", self.models)
        for action in ACTIONS:
            router.add_post(f"/models/{{model:.+}}/{action}", self.act)

    async def models(self, request: web.Request) -> web.Response:
        """GET /models: where each model is and what it takes."""
        check_names(request)
        return json_response({"models": [card(model) for model in self._models]})

    async def act(self, request: web.Request) -> web.Response:
        """POST /models/NAME/ACTION: answers at once; GET /models shows when it is done."""
        check_names(request)
        model = self._models.find(request.match_info["model"])
        action = request.path.rpartition("/")[2]
        if model.core.memory_state() is None:
            message = "models stay in memory: there is no --device-memory-bytes"
            raise RefusedError(message, code="not_supported", status=501)
        if not ACTIONS[action](model):
            state = card(model)
            why = "is pinned" if state["pinned"] else f"is {state['state']}"
            raise RefusedError(f"the model {model.name!r} {why}", code="conflict", status=409)
        return json_response(card(model))


def card(model: ServedModel) -> dict[str, Any]:
    """One model for operators."""
    state = model.core.memory_state()
    shown: dict[str, Any] = {"name": model.name, "aliases": list(model.aliases)}
    if state is None:
        return {**shown, "state": "awake", "pinned": True}
    word, num_bytes, is_pinned, failure = state
    shown.update({"state": word, "pinned": is_pinned, "bytes": num_bytes})
    return shown if failure is None else {**shown, "failure": failure}


def send_away(model: ServedModel) -> bool:
    """Whether it leaves."""
    return model.core.send_away()


def call(model: ServedModel) -> bool:
    """It returns, if it is not there."""
    model.core.call()
    return True


def pin(model: ServedModel) -> bool:
    """It returns and stays. Errors: RefusedError 409 if pinned models would not fit together."""
    if too_large := model.core.pin(True):
        takes, left = too_large
        message = (
            f"the model {model.name!r} takes {takes} bytes, and other pinned models leave {left}"
        )
        raise RefusedError(message, code="conflict", status=409)
    return True


def unpin(model: ServedModel) -> bool:
    """It may make room again."""
    model.core.pin(False)
    return True


ACTIONS = {
    "sleep": send_away,
    "unload": send_away,
    "wake": call,
    "load": call,
    "pin": pin,
    "unpin": unpin,
}
"""`load` and `unload` are what other servers call `wake` and `sleep`."""
