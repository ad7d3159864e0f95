"""What endpoint pickers (Gateway API inference extension, llm-d) and production-stack's router read
from a worker and send to it; docs/SCALING.md has the table."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.worker import Worker

GAUGES = {
    "vllm:num_requests_waiting": 0,
    "vllm:num_requests_running": 0,
    "vllm:kv_cache_usage_perc": 0,
}
HEADERS = {
    "x-request-id": "picked-1",
    "x-session-affinity": "someone",
    "x-session-id": "someone",
    "x-session-token": "someone",
    "x-gateway-destination-endpoint": "10.0.0.1:8000",
    "x-gateway-destination-endpoint-subset": "10.0.0.1:8000",
    "x-gateway-destination-endpoint-served": "10.0.0.1:8000",
    "x-llm-d-inference-fairness-id": "tenant",
    "x-llm-d-inference-objective": "chat",
    "x-llm-d-slo-ttft-ms": "500",
    "x-llm-d-slo-tpot-ms": "20",
    "x-llm-d-model-name-rewrite": "other",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
}


@pytest.fixture(scope="module", params=[1, 2], ids=["one engine", "two engines"])
def worker(request):
    flags = ("--data-parallel-size", request.param, "--block-size", 16)
    with Worker("--device", "cpu", *flags) as found:
        found.num_engines = request.param
        yield found


def families(worker):
    text = worker.get("/metrics").body.decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def by_engine(family):
    """Samples of a family by the label `engine`."""
    return {sample.labels["engine"]: sample for sample in family.samples}


def test_each_engine_has_the_gauges_that_a_picker_scrapes(worker):
    worker.complete("one two three four")
    found = families(worker)
    engines = {str(number) for number in range(worker.num_engines)}
    for name, at_rest in GAUGES.items():
        assert found[name].type == "gauge", name
        samples = by_engine(found[name])
        assert set(samples) == engines, name
        for sample in samples.values():
            assert set(sample.labels) == {"engine", "model_name"}, name
            assert sample.labels["model_name"] == "llama-tied-bf16"
            assert sample.value == at_rest, name


def test_the_cache_s_sizes_are_labels_of_an_info_gauge(worker):
    [one, *_] = samples = list(by_engine(families(worker)["vllm:cache_config_info"]).values())
    assert len(samples) == worker.num_engines
    for sample in samples:
        assert sample.value == 1
        assert sample.labels["block_size"] == "16"
        assert int(sample.labels["num_gpu_blocks"]) > 0
        assert sample.labels["num_gpu_blocks"] == one.labels["num_gpu_blocks"]


def test_production_stack_s_older_names_have_the_same_values(worker):
    for _ in range(3):
        worker.complete("one two three four " * 20)
    found = families(worker)
    hits, queries = (
        sum(sample.value for sample in found[f"vllm:gpu_prefix_cache_{name}"].samples)
        for name in ("hits", "queries")
    )
    assert 0 < hits < queries
    for name, value in (("hits", hits), ("queries", queries)):
        assert sum(sample.value for sample in found[f"vllm:prefix_cache_{name}"].samples) == value
    rates = [sample.value for sample in found["vllm:gpu_prefix_cache_hit_rate"].samples]
    assert max(rates) > 0
    assert all(0 <= rate <= 1 for rate in rates)


def test_headers_for_the_gateway_change_no_answer(worker):
    body = {"prompt": "one two three", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    plain = worker.post("/v1/completions", body)
    picked = worker.post("/v1/completions", body, headers=HEADERS)
    assert plain.status == picked.status == 200
    assert picked.json["choices"] == plain.json["choices"]
    assert picked.json["model"] == "llama-tied-bf16"
    assert picked.headers["x-request-id"] == "picked-1"


def test_disaggregated_prefill_is_refused_by_name(worker):
    body = {"prompt": "one", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    refused = worker.post("/v1/completions", body)
    assert refused.status == 400
    assert refused.json["error"]["param"] == "kv_transfer_params"
