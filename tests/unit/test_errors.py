import json

import pytest

from ingle.errors import (
    FailedError,
    IngleError,
    ModelError,
    OverloadedError,
    RefusedError,
    error_of_event,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RefusedError),
        (404, RefusedError),
        (429, OverloadedError),
        (503, OverloadedError),
        (500, FailedError),
    ],
)
def test_event_becomes_the_exception_of_its_class(status, kind):
    error = {"message": "m", "type": "t", "param": "p", "code": "c"}
    made = error_of_event(json.dumps({"error": error, "status": status}).encode())
    assert type(made) is kind
    assert isinstance(made, IngleError)
    assert str(made) == "m"
    assert getattr(made, "status", status) == status


def test_refused_has_defaults_that_the_core_relies_on():
    error = RefusedError("m")
    assert (error.message, error.param, error.code, error.status) == ("m", None, None, 400)
    assert OverloadedError("m", 2).status == 429


def test_a_long_model_error_keeps_its_ends():
    message = "tokenizer.json: unexpected " + "x" * 100_000 + " at line 3 column 7"
    text = str(ModelError(message))
    assert len(text) < 700
    assert text.startswith("tokenizer.json: unexpected xxx")
    assert text.endswith("xxx at line 3 column 7")
    assert "characters left out" in text
    assert str(ModelError("short")) == "short"
