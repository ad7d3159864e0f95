"""Ray Serve LLM's own application (`build_openai_app`) with ingle as its server."""

import json
import urllib.error

import pytest

pytest.importorskip("ray.llm")

from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

from serve_ray.cluster import HAPROXY, MODEL, ask, wait_until_it_answers
from serve_ray.test_ray_llm import SETTINGS


def config(name, **more):
    return LLMConfig(
        model_loading_config={"model_id": name, "model_source": MODEL},
        server_cls="ingle.integrations.ray.llm.IngleServer",
        engine_kwargs=SETTINGS,
        **more,
    )


def test_ray_s_openai_app_serves_two_models(cluster):
    one = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1}}
    configs = [config(name, deployment_config=one) for name in ("tiny", "other")]
    serve.run(build_openai_app({"llm_configs": configs}), name="llm")
    wait_until_it_answers(HAPROXY, "/v1/models")
    models = json.loads(ask("/v1/models", base=HAPROXY))["data"]
    assert {each["id"] for each in models} == {"tiny", "other"}
    for name in ("tiny", "other"):
        body = {"model": name, "prompt": "a b", "max_tokens": 6, "ignore_eos": True}
        whole = json.loads(ask("/v1/completions", body, HAPROXY))
        assert (whole["model"], whole["usage"]["completion_tokens"]) == (name, 6)
        message = {"role": "user", "content": "Hello"}
        body = {"model": name, "messages": [message], "max_tokens": 4, "stream": True}
        events = ask("/v1/chat/completions", body, HAPROXY).decode().strip().split("\n\n")
        assert all(event.startswith("data: ") for event in events)
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[0].removeprefix("data: "))["model"] == name
    assert status_of({"model": "tiny", "prompt": "a", "temperature": 9}) == (400, "temperature")
    assert status_of({"model": "none", "prompt": "a"}) == (404, "none")
    serve.delete("llm")


def status_of(body):
    """The status of a refused completion, and what its text must name."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask("/v1/completions", body, HAPROXY)
    said = refused.value.read().decode()
    return refused.value.code, next(
        (word for word in ("temperature", "none") if word in said), said
    )


@pytest.mark.parametrize(
    "placed", [{"accelerator_type": "H100"}, {"placement_group_config": {"bundles": [{"CPU": 1}]}}]
)
def test_what_places_vllm_s_processes_is_refused_by_name(placed):
    with pytest.raises(ValueError, match=next(iter(placed))):
        build_openai_app({"llm_configs": [config("tiny", **placed)]})
