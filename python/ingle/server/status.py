"""[9] Turns errors into HTTP responses, in OpenAI's or Anthropic's format. Event loop.

This is the only place that does so.
"""

import math
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from ingle.errors import FatalError, IngleError, OverloadedError, RefusedError


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> bytes:
    """`{"error": {message, type, param, code}}`; the type follows from the status."""
    error = {
        "message": message,
        "type": TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        "param": param,
        "code": code or CODES.get(status),
    }
    return msgspec.json.encode({"error": error})


def error_response(
    status: int,
    message: str,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    """A whole response in that format."""
    return web.Response(
        body=error_body(status, message, param, code),
        status=status,
        headers=headers,
        content_type="application/json",
    )


def whole_response(status: int, message: str) -> bytes:
    """A response as bytes, for a connection on which there is no request; it ends with it."""
    body = error_body(status, message)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nServer: ingle\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def response_of(error: IngleError) -> web.Response:
    """The response to one of our own errors. Only the caller's mistakes show details."""
    if isinstance(error, RefusedError):
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
        return error_response(error.status, error.message, error.param, error.code, headers)
    if isinstance(error, OverloadedError):
        headers = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
        return error_response(error.status, error.message, headers=headers)
    if isinstance(error, FatalError):
        return error_response(503, "the engine has stopped", headers={"Retry-After": "10"})
    return error_response(500, str(error))


def response_of_http(error: web.HTTPException, path: str) -> web.Response:
    """The response to an error from aiohttp: no route, wrong method, body too large."""
    kept = {k: v for k, v in error.headers.items() if k in ("Allow", "Retry-After", "Location")}
    if error.status == 404:
        message = f"no such URL: {path[:200]}"
    elif isinstance(error, web.HTTPMethodNotAllowed):
        message = (
            f"{error.method} is not allowed here; use {', '.join(sorted(error.allowed_methods))}"
        )
    elif isinstance(error, web.HTTPRequestEntityTooLarge):
        message = "the request body is larger than max-body-bytes"
    else:
        message = error.reason or HTTPStatus(error.status).phrase
    return error_response(error.status, message, headers=kept)


def json_response(document: Any, status: int = 200) -> web.Response:
    """A JSON document as a response."""
    return web.Response(
        body=msgspec.json.encode(document), status=status, content_type="application/json"
    )


def in_anthropic_shape(response: web.Response, request_id: str) -> None:
    """Rewrites an error response of this module in Anthropic's format. Headers stay."""
    body = response.body
    message = msgspec.json.decode(body)["error"]["message"] if isinstance(body, bytes) else ""
    document = {
        "type": "error",
        "error": {"type": anthropic_type(response.status), "message": message},
        "request_id": request_id,
    }
    response.body = msgspec.json.encode(document)
    if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.set_status(ANTHROPIC_OVERLOADED, "Overloaded")


def anthropic_type(status: int) -> str:
    """The error type in Anthropic's format, by the HTTP status in OpenAI's format."""
    return ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


ANTHROPIC_OVERLOADED = 529
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
CODES = {429: "rate_limit_exceeded", 503: "service_unavailable", 401: "invalid_api_key"}
