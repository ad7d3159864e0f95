"""One cluster for all tests, since a start takes long."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

REQUEST_CLASSES = str(Path(__file__).parent / "request_classes")

if importlib.util.find_spec("vllm") is None and importlib.util.find_spec("sglang") is not None:
    sys.path.insert(0, REQUEST_CLASSES)


@pytest.fixture(scope="session")
def cluster():
    import ray
    from ray import serve

    # For the cluster, not for this process: replicas of ingresses take connections themselves, and
    # an HAProxy of Ray's finds them.
    os.environ |= {
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_worker_niceness": "0",
        "PYTHONPATH": os.pathsep.join([REQUEST_CLASSES, os.environ["PYTHONPATH"]]),
    }
    # On a busy machine Ray's processes take longer than it waits for them.
    again(lambda: ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False), ray.shutdown)
    again(lambda: serve.start(http_options={"host": "127.0.0.1"}), lambda: None)
    yield
    serve.shutdown()
    ray.shutdown()


def again(start, clean_up):
    """Starts something, up to five times."""
    for last in (False, False, False, False, True):
        try:
            start()
            return
        except Exception:
            if last:
                raise
            clean_up()
