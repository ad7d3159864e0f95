"""Where an unexpected exception happened, without its text, for the log. Any thread.

An exception's text can quote a prompt, and formatting one reads source files, which the locked-down
worker cannot open.
"""

import traceback


def trace(error: BaseException) -> str:
    """The frames and the type of an exception and of those that led to it, oldest first."""
    parts = []
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        frames = [
            f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}'
            for frame, line in traceback.walk_tb(cause.__traceback__)
        ]
        lines = ["Traceback (most recent call last):", *frames, type(cause).__qualname__]
        parts.append("\n".join(lines))
        cause = cause.__cause__ or cause.__context__
    return "\n".join(reversed(parts))
