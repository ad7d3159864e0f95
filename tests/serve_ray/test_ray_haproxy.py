"""The HAProxy that Ray starts before the fronts, as deploy/rayservice.yaml asks for it."""

import json
import urllib.error

import pytest

pytest.importorskip("ray")

from ray import serve

from serve_ray.cluster import HAPROXY, ask, deploy, everywhere, open_url, wait_until_it_answers


def test_clients_reach_the_workers_through_ray_s_haproxy(cluster):
    handle = deploy(min_workers=2, max_workers=2, fronts=2, sim_speed="inf")
    worker = everywhere(handle, "url", 2)[0]
    wait_until_it_answers(HAPROXY, "/v1/models")
    # It is HAProxy that answers there, not Ray's own proxy.
    assert "haproxy_frontend_" in ask("/metrics", base="http://127.0.0.1:9101").decode()
    body = {"prompt": "a b", "max_tokens": 8, "temperature": 0}
    through, direct = (json.loads(ask("/v1/completions", body, at)) for at in (HAPROXY, worker))
    assert through["choices"] == direct["choices"]
    with open_url(HAPROXY + "/v1/completions", body | {"stream": True}) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.read().decode().endswith("data: [DONE]\n\n")
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask("/v1/completions", {"prompt": "x", "temperature": 9}, HAPROXY)
    assert refused.value.code == 400
    assert json.loads(refused.value.read())["error"]["param"] == "temperature"
    serve.delete("ingle")
