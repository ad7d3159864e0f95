"""Every error that ingle raises on purpose, in the four classes of the project plus start-up.

Any thread. The core raises the same classes (rust/python/src/error.rs looks them up here once);
server/status.py is the only place that turns them into HTTP answers.
"""

import json


class IngleError(Exception):
    """Base of all errors that ingle raises on purpose; the message is one line."""


class RefusedError(IngleError):
    """The caller's fault; nothing was queued and nothing changed."""

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
        """The field at fault, as OpenAI's `error.param`."""
        self.code = code
        """A word for programs, as OpenAI's `error.code`."""
        self.status = status
        """The HTTP status, 4xx."""


class OverloadedError(IngleError):
    """Nothing was queued; the same request may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float, status: int = 429) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.status = status
        """The HTTP status: 429 where the queue is full, 503 where the worker is leaving."""


class FailedError(IngleError):
    """This request failed through no fault of its own; others go on."""


class FatalError(IngleError):
    """The engine is dead; the process must exit (the server does, with code 70)."""


class ModelError(IngleError):
    """The model or a setting of the engine is unusable; nothing was started."""

    def __init__(self, message: str) -> None:
        # Parsers quote what they did not expect, which may be most of a file, and say behind it
        # what they expected and where.
        left_out = len(message) - MOST_MESSAGE
        if left_out > 0:
            head, tail = message[: MOST_MESSAGE // 2], message[-MOST_MESSAGE // 2 :]
            message = f"{head} [{left_out} characters left out] {tail}"
        super().__init__(message)


class ConfigError(IngleError):
    """A setting of the command line, of the settings file or of the key file is wrong."""


class InternalError(IngleError):
    """A mistake of ours, found by a check that stays on in production."""


MOST_MESSAGE = 600
"""Most characters of a message that may quote a file."""


def error_of_event(payload: bytes) -> IngleError:
    """The error that a core event of kind ERROR tells, as the exception of its class."""
    document = json.loads(payload)
    error, status = document["error"], int(document.get("status", 500))
    if status in (429, 503):
        return OverloadedError(error["message"], 1.0, status)
    if 400 <= status < 500:
        return RefusedError(error["message"], error.get("param"), error.get("code"), status)
    return FailedError(error["message"])
