"""Exit codes of every `ingle` command. Scripts and unit files rely on them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit code means."""

    OK = 0
    """Success. For `serve`: stopped on request, and every request has ended."""
    FAILED = 1
    """A request failed, or the address could not be bound."""
    USAGE = 2
    """A flag, the settings file or the key file is wrong."""
    MODEL = 3
    """The model or a setting of the engine is unusable; nothing was started."""
    HARDENING = 4
    """The worker could not be locked down, `strict` misses something, or its self-proof failed."""
    FATAL = 70
    """The engine died while serving. A supervisor should restart the worker."""
    INTERRUPTED = 130
    """Ctrl-C before the command was done."""
