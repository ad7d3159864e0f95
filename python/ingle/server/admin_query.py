"""Checks what the admin socket's requests have in their query. Event loop."""

from aiohttp import web

from ingle.errors import RefusedError


def check_names(request: web.Request, *known: str) -> None:
    """Errors: RefusedError 400 names a part of the query that has no effect here."""
    for name in request.query:
        if name not in known:
            allowed = f"the query may have {', '.join(known)}" if known else "takes no query"
            raise RefusedError(f"{name[:40]}: {request.path} {allowed}", name[:40])


def number(
    request: web.Request, name: str, default: float, low: float, high: float, whole: bool = False
) -> float:
    """A number of the query. Errors: RefusedError 400 names it."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not low <= found <= high or (whole and found != int(found)):
        kind = "whole number" if whole else "number"
        raise RefusedError(f"{name}: must be a {kind} from {low:g} to {high:g}", name)
    return found
