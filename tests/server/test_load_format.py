"""Models without weights on disk: `--load-format dummy`."""

import math
import shutil

import pytest

import ingle
from server.worker import MODELS, TINY, Worker

FAMILIES = [
    "llama-untied-f16", "llama-fp8-block-tied", "llama-w4a16-asym", "llama-awq", "llama-gptq",
    "gpt-oss-mxfp4", "gpt-oss", "gemma2", "glm4_moe", "qwen3-moe-fp8-block", "mixtral", "olmo3",
    "deepseek_v3-fp8-block", "glm4_moe_lite-w4a16", "deepseek_v2",
]  # fmt: skip


def shape_of(name, folder):
    """The config.json of a reference model, alone."""
    shutil.copy(MODELS / name / "config.json", folder)
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_activations_stay_finite_and_follow_the_prompt(name, tmp_path):
    folder = shape_of(name, tmp_path)
    params = ingle.SamplingParams(temperature=0, max_tokens=6, logprobs=0, ignore_eos=True)
    prompts = ["one two three", "something else"]
    found = []
    for _ in range(2):
        with ingle.Engine(str(folder), device="cpu", load_format="dummy") as engine:
            assert engine.info["load_format"] == "dummy"
            assert engine.info["notes"][0].startswith("load_format dummy: all weights are pseudo-")
            outputs = engine.generate(prompts, params)
        answers = [output.outputs[0] for output in outputs]
        found.append([[token.logprob for token in answer.logprobs] for answer in answers])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
    for logprobs in found[0]:
        assert len(logprobs) == 6
        assert all(map(math.isfinite, logprobs))


def test_a_served_dummy_says_so_at_start_and_in_the_model_card(tmp_path):
    folder = shape_of("llama-tied-bf16", tmp_path)
    for device in ("cpu", "sim"):
        arguments = ("--device", device, "--load-format", "dummy")
        with Worker(*arguments, model=folder) as worker:
            assert "load-format dummy: all weights are pseudo-random numbers" in worker.summary
            assert worker.get("/v1/models").json["data"][0]["load_format"] == "dummy"
            answer = worker.complete("words", max_tokens=4, ignore_eos=True)
            assert answer["usage"]["completion_tokens"] == 4
    with Worker("--device", "sim") as worker:
        assert worker.get("/v1/models").json["data"][0]["load_format"] == "auto"


def test_the_files_own_tokenizer_is_used_where_there_is_one(tmp_path):
    folder = shape_of("llama-tied-bf16", tmp_path)
    shutil.copy(TINY / "tokenizer.json", folder)
    text = "The quick brown fox"
    lengths = []
    for model, options in ((folder, {"load_format": "dummy"}), (TINY, {})):
        with ingle.Engine(str(model), device="sim", **options) as engine:
            output = engine.generate(text, ingle.SamplingParams(max_tokens=1))[0]
            lengths.append(output.usage.prompt_tokens)
    assert lengths[0] == lengths[1] < len(text)


def test_a_folder_without_weights_is_refused_by_default(tmp_path):
    folder = shape_of("llama-tied-bf16", tmp_path)
    with pytest.raises(ingle.ModelError, match=r"tokenizer\.json is missing"):
        ingle.Engine(str(folder), device="cpu")
    with pytest.raises(ingle.ConfigError, match="load_format"):
        ingle.Engine(str(folder), device="cpu", load_format="zeros")
