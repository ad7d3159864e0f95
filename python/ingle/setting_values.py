"""Checks of single values of settings, and the files that some of them name."""

from pathlib import Path
from urllib.parse import urlsplit

from ingle.errors import ConfigError
from ingle.small_files import read_bounded


def check_text(name: str, text: str) -> None:
    """Errors: ConfigError for a text that no file name and no JSON can have."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{name}: character {error.start} is not valid Unicode (a lone surrogate)"
        raise ConfigError(message) from None
    if "\0" in text:
        raise ConfigError(f"{name}: must not contain a null character")


def check_url(name: str, url: str) -> None:
    """Errors: ConfigError unless `url` is an address to connect to."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_good = is_good and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError(f"{name}: must be a URL such as http://127.0.0.1:4318, not {url!r}")


def parse_sim_speed(text: str) -> float | str:
    """A positive number, or the word `inf` as the core wants it."""
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not speed > 0:
        raise ConfigError(f"sim_speed: must be a number above 0 or inf, not {text!r}")
    return "inf" if speed == float("inf") else speed


def read_text(name: str, path: Path) -> str:
    """The text of a file that the setting `name` gives."""
    try:
        return read_bounded(path, MOST_FILE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: cannot read {path}: it is not UTF-8") from error
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{name}: cannot read {path}: {reason}") from error


MOST_FILE_BYTES = 16 << 20
"""Of a settings file or a chat template."""
