import json

import pytest
from aiohttp import web

from ingle.errors import FailedError, FatalError, OverloadedError, RefusedError
from ingle.server.status import response_of, response_of_http


def error(response):
    body = json.loads(response.body)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.content_type == "application/json"
    return body["error"]


def test_a_refused_request_becomes_a_400_with_its_field():
    response = response_of(RefusedError("n: too large", "n", "invalid_value"))
    assert response.status == 400
    assert error(response) == {
        "message": "n: too large",
        "type": "invalid_request_error",
        "param": "n",
        "code": "invalid_value",
    }


def test_missing_key_says_how_to_authenticate():
    response = response_of(RefusedError("key", status=401))
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert error(response)["code"] == "invalid_api_key"


@pytest.mark.parametrize(("given", "header"), [(0, "1"), (0.2, "1"), (2.1, "3"), (60, "60")])
def test_overloaded_says_when_to_come_back(given, header):
    response = response_of(OverloadedError("full", given))
    assert (response.status, response.headers["Retry-After"]) == (429, header)
    assert error(response)["type"] == "rate_limit_error"


def test_leaving_is_503():
    response = response_of(OverloadedError("leaving", 1, status=503))
    assert (response.status, response.headers["Retry-After"]) == (503, "1")


def test_our_own_faults():
    assert response_of(FailedError("not finite")).status == 500
    dead = response_of(FatalError("CUDA error at 0xdeadbeef"))
    assert dead.status == 503
    assert "0xdeadbeef" not in error(dead)["message"]


def test_errors_of_aiohttp():
    response = response_of_http(web.HTTPMethodNotAllowed("PUT", ["GET", "HEAD"]), "/x")
    assert (response.status, response.headers["Allow"]) == (405, "GET,HEAD")
    assert "PUT" in error(response)["message"]
    assert error(response_of_http(web.HTTPNotFound(), "/x"))["message"] == "no such URL: /x"
    assert response_of_http(web.HTTPRequestEntityTooLarge(1, 2), "/x").status == 413
