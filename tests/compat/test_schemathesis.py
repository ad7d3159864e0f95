"""Requests made from our own OpenAPI document: no 5xx, no answer that it does not have."""

import pytest

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")
pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

OPERATIONS = [
    ("POST", "/v1/completions/render"),
    ("POST", "/v1/chat/completions/render"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/tokenizer_info"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
]


def examine(worker, method, path, examples):
    schema = schemathesis.openapi.from_url(worker.url + "/openapi.json")
    operation = schema[path][method]
    checks = schemathesis.checks
    wanted = [
        checks.not_a_server_error,
        schemathesis.specs.openapi.checks.status_code_conformance,
        schemathesis.specs.openapi.checks.content_type_conformance,
        schemathesis.specs.openapi.checks.response_schema_conformance,
    ]

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy())
    def run(case):
        bounded(case)
        response = case.call(timeout=30)
        case.validate_response(response, checks=wanted)

    run()


def bounded(case):
    """Right answers of thousands of tokens are no news and take long."""
    body = case.body
    if not isinstance(body, dict):
        return
    for name, path in LIMITS.items():
        is_absent = case.path == path and body.get(name) is None
        if is_absent or (isinstance(body.get(name), int) and body[name] > 4):
            body[name] = 2
    if isinstance(body.get("n"), int):
        body["n"] = min(body["n"], 2)


LIMITS = {
    "max_tokens": None,
    "max_completion_tokens": "/v1/chat/completions",
    "max_output_tokens": "/v1/responses",
}
"""The field, and where its absence means the rest of the context."""


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_5xx_and_nothing_undocumented(cpu, method, path):
    examine(cpu, method, path, 40 if method == "POST" else 8)
    cpu.wait_until_idle()


@pytest.mark.long
@pytest.mark.parametrize(("method", "path"), [pair for pair in OPERATIONS if pair[0] == "POST"])
def test_many_more_generated_requests_find_no_fault(cpu, method, path):
    examine(cpu, method, path, 1500)


def test_every_operation_is_examined(cpu):
    document = cpu.get("/openapi.json").json
    paths = {(m.upper(), p) for p, methods in document["paths"].items() for m in methods}
    assert paths == set(OPERATIONS)
