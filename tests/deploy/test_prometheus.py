"""Every query of deploy/ in a real Prometheus that scrapes a live worker.

Needs prometheus on the machine (Debian: prometheus); without it these tests are skipped, loudly.
"""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from deploy.test_queries import DEPLOY, queries
from server.worker import Worker

PROMETHEUS = shutil.which("prometheus")
LIMIT_S = 60.0
LABEL_VALUES = re.compile(r"label_values\((.*), \w+\)$")
LIMIT_OF_ALERT = re.compile(r"(?:>|==) [\d.]+")

pytestmark = pytest.mark.skipif(
    PROMETHEUS is None, reason="PROMETHEUS IS NOT INSTALLED: apt install prometheus"
)


class Prometheus:
    """One that scrapes `target` and has the rules of alerts.yaml."""

    def __init__(self, folder, target):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        config = {
            "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(DEPLOY / "alerts.yaml")],
            "scrape_configs": [{"job_name": "ingle", "static_configs": [{"targets": [target]}]}],
        }
        path = Path(folder) / "prometheus.yml"
        path.write_text(json.dumps(config))
        self.log = (Path(folder) / "log").open("w+")
        self.process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={path}",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={self.address}",
            ],
            stderr=self.log,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def api(self, path, **query):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return json.loads(answer.read())["data"]

    def ask(self, query):
        """The series that it answers with. An error of its is one of HTTP."""
        return self.api("query", query=query)["result"]

    def wait_for(self, has_come):
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                if has_come():
                    return
            except OSError:
                assert self.process.poll() is None, Path(self.log.name).read_text()
            assert time.monotonic() < deadline, Path(self.log.name).read_text()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    events = json.dumps({"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:0"})
    flags = ("--device", "cpu", "--served-model-name", "MODEL", "--kv-events-config", events)
    with (
        Worker(*flags) as worker,
        Prometheus(tmp_path_factory.mktemp("prometheus"), "{}:{}".format(*worker.address)) as found,
    ):

        def has_rates():
            worker.complete(model="MODEL")
            return found.ask("rate(vllm:inter_token_latency_seconds_count[1m]) > 0")

        found.wait_for(has_rates)
        yield found


def test_every_query_finds_series(prometheus):
    asked = list(queries())
    assert len(asked) > 25
    for place, query in asked:
        variable = LABEL_VALUES.match(query)
        made = variable[1] if variable else query
        made = made.replace("$__rate_interval", "1m").replace("$model", "MODEL")
        made = made.replace("$worker", ".+")
        # What an alert compares must be there, and the sides of an `and` must have the same labels.
        assert prometheus.ask(LIMIT_OF_ALERT.sub(">= bool 0", made)), (place, query)


def test_the_rules_are_evaluated_and_a_healthy_worker_raises_no_alert(prometheus):
    def rules():
        return [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]

    prometheus.wait_for(lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert len(rules()) == sum(place.startswith("alert ") for place, _ in queries())
    assert {rule["health"] for rule in rules()} == {"ok"}, rules()
    # On a machine that can confine little, a layer of the lock-down may be missing.
    raised = {rule["name"] for rule in rules() if rule["state"] != "inactive"}
    assert raised <= {"IngleHardeningMissing"}
