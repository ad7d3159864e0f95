"""A model divided among ranks on the cpu device: `--tensor-parallel-size`."""

import json

import pytest

import ingle
from ingle.errors import ModelError
from server.test_sleep import AdminSocket
from server.worker import MODELS, Worker

CASES = MODELS.parent / "cases"
LOG_PROB_TOLERANCE = 2e-3  # as tests/golden


def check_answers(name, **options):
    """Greedy answers are the reference's up to a near tie, alone and in a batch the same."""
    cases = json.loads((CASES / f"{name}.json").read_text())["cases"]
    params = ingle.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
    prompts = [case["ids"] for case in cases]
    with ingle.Engine(str(MODELS / name), device="cpu", max_model_len=256, **options) as engine:
        assert engine.info["ranks"] == options["tensor_parallel_size"]
        batch = [output.outputs[0] for output in engine.generate(prompts, params)]
        alone = [engine.generate([prompt], params)[0].outputs[0] for prompt in prompts]
    for case, ours, again in zip(cases, batch, alone, strict=True):
        assert ours.token_ids == again.token_ids
        assert [t.logprob for t in ours.logprobs] == [t.logprob for t in again.logprobs]
        for place, token in enumerate(ours.token_ids):
            if token != case["greedy_ids"][place]:
                assert case["greedy_gaps"][place] < 1e-3, (name, place)
                break
            off = abs(ours.logprobs[place].logprob - case["greedy_logprobs"][place])
            assert off < LOG_PROB_TOLERANCE, (name, place, off)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ministral3", {"tensor_parallel_size": 4}),
        ("llama-awq-group64", {"tensor_parallel_size": 2}),
        ("gemma3", {"tensor_parallel_size": 2}),
        ("gpt-oss", {"tensor_parallel_size": 4, "enable_expert_parallel": True}),
        ("glm4_moe", {"tensor_parallel_size": 2}),
    ],
)
def test_a_divided_model_gives_the_reference_answers(name, options):
    check_answers(name, **options)


def test_two_engines_serve_a_divided_model_and_wake_from_sleep(tmp_path):
    place = tmp_path / "admin.sock"
    flags = ("--data-parallel-size", "2", "--tensor-parallel-size", "2", "--enable-sleep-mode")
    with Worker("--device", "cpu", *flags, "--admin-uds", place) as worker:
        assert "2 ranks" in worker.summary
        assert worker.health()["ranks"] == 2
        ask = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
        texts = {worker.complete("one two three", **ask)["choices"][0]["text"] for _ in range(4)}
        admin = AdminSocket(place)
        assert admin.ask("POST", "/sleep?level=2") == (200, {"is_sleeping": True})
        assert admin.ask("POST", "/wake_up") == (200, {"is_sleeping": False})
        texts |= {worker.complete("one two three", **ask)["choices"][0]["text"] for _ in range(4)}
        assert len(texts) == 1
        assert worker.stop() == 0, worker.errors()


@pytest.mark.parametrize(
    ("name", "options", "want"),
    [
        (
            "llama-fp8-block-tied",
            {"tensor_parallel_size": 2},
            "tensor_parallel_size 2: does not divide num_attention_heads (3)",
        ),
        (
            "olmo2",
            {"tensor_parallel_size": 2},
            "tensor_parallel_size 2: a norm over all heads of queries and keys cannot be divided",
        ),
        (
            "gpt-oss",
            {"enable_expert_parallel": True},
            "enable_expert_parallel: needs a tensor_parallel_size above 1",
        ),
        (
            "qwen3",
            {"tensor_parallel_size": 2, "enable_expert_parallel": True},
            "enable_expert_parallel: the model has no experts",
        ),
        (
            "qwen3",
            {"tensor_parallel_size": 2, "device": "sim"},
            "tensor_parallel_size: only the cpu device has this setting",
        ),
        (
            "qwen3",
            {"tensor_parallel_size": 2, "device": "cuda"},
            "tensor_parallel_size: only the cpu device has this setting",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(name, options, want):
    with pytest.raises(ModelError) as refused:
        ingle.Engine(str(MODELS / name), **{"device": "cpu", **options})
    assert str(refused.value).startswith(want)
