"""[1] The content of messages: text only. Other content is refused by name. Any thread."""

from collections.abc import Mapping
from typing import Any

from ingle.errors import RefusedError

MEDIA = {
    "image": "an image",
    "image_url": "an image",
    "input_image": "an image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "a video",
    "video_url": "a video",
    "input_video": "a video",
    "document": "a document",
    "file": "a file",
    "input_file": "a file",
}
"""Types of content parts that clients send and that are not text."""


def check_media(kind: Any, place: str) -> None:
    """Errors: RefusedError if a part of this type is an image, audio or the like."""
    name = MEDIA.get(kind) if isinstance(kind, str) else None
    if name is not None:
        message = f"this model takes text only; {place} is {name}"
        raise RefusedError(message, place, "invalid_value")


def joined_text(parts: list[Any], place: str) -> str:
    """The text parts of a message's content, joined by line feeds."""
    texts = []
    for i, part in enumerate(parts):
        where = f"{place}[{i}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        check_media(kind, where)
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            message = f'{where}: must be a text part, as {{"type": "text", "text": "x"}}'
            raise RefusedError(message, where, "invalid_value")
        texts.append(text)
    return "\n".join(texts)
