"""Exit codes of every `ingle` command: an interface that scripts and unit files rely on."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit code means."""

    OK = 0
    """Done; for `serve`: told to stop, and every request has had its end."""
    FAILED = 1
    """A request failed, or the address could not be bound."""
    USAGE = 2
    """A flag, the settings file or the key file is wrong."""
    MODEL = 3
    """The model or a setting of the engine is unusable; nothing was started."""
    FATAL = 70
    """The engine died while serving; a supervisor should start the worker again."""
    INTERRUPTED = 130
    """Ctrl-C before the command was done."""
