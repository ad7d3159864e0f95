"""Every error that ingle raises on purpose: for requests, for start-up, and for bugs.

Any thread. The core raises the same classes (rust/python/src/error.rs looks them up here once);
server/status.py is the only place that turns them into HTTP answers.
"""

import json


class IngleError(Exception):
    """Base class of all errors that ingle raises on purpose. The message is one line."""


class RefusedError(IngleError):
    """The request is invalid. Nothing was queued and nothing changed."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        """The invalid field, as in OpenAI's `error.param`."""
        self.code = code
        """A machine-readable code, as in OpenAI's `error.code`."""
        self.status = status
        """The HTTP status, 4xx."""


class OverloadedError(IngleError):
    """Nothing was queued; the same request may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float, status: int = 429) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.status = status
        """The HTTP status: 429 if the queue is full, 503 if the worker is shutting down."""


class FailedError(IngleError):
    """This request failed although it is valid. Other requests continue."""


class FatalError(IngleError):
    """The engine is dead. The process must exit (the server does, with code 70)."""


class ModelError(IngleError):
    """The model or an engine setting is unusable. Nothing was started."""

    def __init__(self, message: str) -> None:
        # Parsers quote unexpected input, which may be most of a file, and say after it what they
        # expected and where.
        left_out = len(message) - MOST_MESSAGE
        if left_out > 0:
            head, tail = message[: MOST_MESSAGE // 2], message[-MOST_MESSAGE // 2 :]
            message = f"{head} [{left_out} characters left out] {tail}"
        super().__init__(message)


class ConfigError(IngleError):
    """A flag, a key of the settings file or a line of the key file is wrong."""


class HardeningError(IngleError):
    """The process cannot be locked down as asked, or it is not as it should be. It must exit."""


class InternalError(IngleError):
    """A bug in ingle, found by a check that stays on in production."""


MOST_MESSAGE = 600
"""Maximum length of a message that may quote a file, in characters."""


def error_of_event(payload: bytes) -> IngleError:
    """The exception for a core event of kind ERROR."""
    document = json.loads(payload)
    error, status = document["error"], int(document.get("status", 500))
    if status in (429, 503):
        return OverloadedError(error["message"], 1.0, status)
    if 400 <= status < 500:
        return RefusedError(error["message"], error.get("param"), error.get("code"), status)
    return FailedError(error["message"])
