"""Every query of the dashboard, the alerts and the autoscaler names metrics and labels that a live
worker has."""

import json
import re
from pathlib import Path

import pytest
import yaml

from server.worker import Worker

DEPLOY = Path(__file__).parents[2] / "deploy"
OF_PROMETHEUS = {"instance", "job", "le"}
NAME = re.compile(r"\b((?:vllm|ingle):\w+)(\{[^}]*\})?")
LABEL = re.compile(r'(\w+)\s*(?:=~|!=|!~|=)\s*"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")


def queries():
    board = json.loads((DEPLOY / "grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]
    for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]
    scaled = yaml.safe_load((DEPLOY / "scaledobject.yaml").read_text())
    for trigger in scaled["spec"]["triggers"]:
        yield "scaler", trigger["metadata"]["query"]


@pytest.fixture(scope="module")
def series():
    """Labels of each series of a worker that has served, by name."""
    events = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:0"}
    with Worker("--device", "cpu", "--kv-events-config", json.dumps(events)) as worker:
        worker.complete()
        found = {}
        for line in worker.get("/metrics").body.decode().splitlines():
            sample = re.match(r"([a-z]+:\w+)(?:\{(.*)\})? \S+$", line)
            if sample:
                labels = set(re.findall(r'(\w+)="', sample[2] or ""))
                found.setdefault(sample[1], set()).update(labels)
        yield found
        assert worker.stop() == 0, worker.errors()


def test_queries_name_what_a_live_worker_has(series):
    asked = list(queries())
    assert len(asked) > 25
    for place, query in asked:
        names = NAME.findall(query)
        assert names or query.startswith("up{"), (place, query)
        known = set()
        for name, labels in names:
            assert name in series, (place, name)
            known |= series[name]
            for label in LABEL.findall(labels):
                assert label in series[name] | OF_PROMETHEUS, (place, name, label)
        for group in GROUPING.findall(query):
            for label in group.split(","):
                assert label.strip() in known | OF_PROMETHEUS, (place, label)
        assert query.count("(") == query.count(")"), (place, query)
        assert query.count("{") == query.count("}"), (place, query)


def test_values_that_queries_ask_for_exist():
    reasons = {
        value for _, query in queries() for value in re.findall(r'finished_reason="(\w+)"', query)
    }
    assert reasons <= {"stop", "length", "abort", "error"}
