"""Whole models against the reference cases, through the public API on the CPU device.

Greedy text runs free here, so it is compared up to the first place where the reference's two best
tokens lie closer than the float32 tolerance. Logits at every prompt position are compared in
rust/cpu/tests/golden.rs, where they can be seen.
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from padding import pad_model

import ingle
from ingle.demo import resolve_model
from ingle.errors import ConfigError

HERE = Path(__file__).parent
TINY = sorted(path.stem for path in (HERE / "cases").glob("*.json") if "smollm2" not in path.stem)
SMOLLM2 = "smollm2-135m-instruct-q4_1"
LOG_PROB_TOLERANCE = 2e-3  # a logit and the normaliser may each be off by 1e-3
NEAR_TIE = {SMOLLM2: 0.01}  # everything else 1e-3
KV_BYTES_PER_ELEMENT = 4  # f32 on the CPU

MODELS: list[Path] = []  # where the padded tiny models lie

# One engine setting a line; each must give the same answers.
VARIANTS = {
    "plain": {},
    "blocks-of-4": {"block_size": 4},
    "blocks-of-16": {"block_size": 16},
    "chunks-of-5": {"max_num_batched_tokens": 5, "max_num_seqs": 4},
    "no-prefix-cache": {"enable_prefix_caching": False},
}


@cache
def cases(name: str) -> list[dict]:
    return json.loads((HERE / "cases" / f"{name}.json").read_text())["cases"]


@pytest.fixture(scope="session", autouse=True)
def padded_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in TINY:
        pad_model(name, folder)
    MODELS.append(folder)


def model_path(name: str) -> str:
    if name != SMOLLM2:
        return str(MODELS[-1] / name)
    try:
        return resolve_model("demo")
    except ConfigError as error:
        pytest.skip(str(error))


def params(name: str) -> ingle.SamplingParams:
    longest = max(len(case["greedy_ids"]) for case in cases(name))
    return ingle.SamplingParams(temperature=0, max_tokens=longest, ignore_eos=True, logprobs=1)


def check(name: str, case: dict, completion: ingle.Completion) -> None:
    reference = zip(case["greedy_ids"], case["greedy_logprobs"], case["greedy_gaps"], strict=True)
    # The reference stops at end-of-text, which is ignored here.
    assert len(completion.token_ids) >= len(case["greedy_ids"])
    for place, (token, log_prob, gap) in enumerate(reference):
        ours = completion.token_ids[place]
        if ours != token:
            assert gap < NEAR_TIE.get(name, 1e-3), f"token {place}: {ours} instead of {token}"
            return
        off = abs(completion.logprobs[place].logprob - log_prob)
        assert off < LOG_PROB_TOLERANCE, f"token {place}: log-prob off by {off}"


def bits(output: ingle.RequestOutput) -> list:
    (completion,) = output.outputs
    return [completion.token_ids, [entry.logprob for entry in completion.logprobs]]


def preemptions(engine: ingle.Engine) -> float:
    text = engine.core.metrics().decode()
    return sum(float(v) for v in re.findall(r"^vllm:num_preemptions_total\S* (\S+)$", text, re.M))


@pytest.mark.parametrize("name", [*TINY, SMOLLM2])
def test_answers_equal_the_reference(name):
    """The same bits alone, in a batch, from the prefix cache, in other blocks and in chunks."""
    todo = cases(name)[:3] if name == SMOLLM2 else cases(name)
    prompts = [case["ids"] for case in todo]
    alone = None
    for label, options in VARIANTS.items():
        if name == SMOLLM2 and label != "plain":
            continue
        with ingle.Engine(model_path(name), device="cpu", max_model_len=512, **options) as engine:
            first = [engine.generate([c["ids"]], params(name))[0] for c in todo]
            batch = engine.generate(prompts, params(name))
            again = engine.generate(prompts, params(name))
        for case, *outputs in zip(todo, first, batch, again, strict=True):
            for output in outputs:
                check(name, case, output.outputs[0])
        results = [[bits(o) for o in run] for run in (first, batch, again)]
        alone = alone or results[0]
        assert results == [alone] * 3, label
        if options.get("enable_prefix_caching", True):
            assert max(o.usage.cached_tokens for o in again) > 0, label


@pytest.mark.parametrize("name", TINY)
def test_preemption_does_not_change_answers(name):
    config = json.loads((HERE / "models" / name / "config.json").read_text())
    config = config.get("text_config", config)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    layers = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    numbers = 2 * config["num_key_value_heads"] * head_dim
    if "kv_lora_rank" in config:
        # A key that holds its value, in whole vectors of 32.
        kept = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        numbers = -(-kept // 32) * 32
    num_layers = sum(kind != "linear_attention" for kind in layers)
    token_bytes = num_layers * numbers * KV_BYTES_PER_ELEMENT
    longest = max(len(case["ids"]) + len(case["greedy_ids"]) for case in cases(name))
    # Room for the longest request and a little: together they cannot all run.
    num_tokens = (longest // 4 + 2) * 4
    with ingle.Engine(
        model_path(name),
        device="cpu",
        block_size=4,
        max_model_len=num_tokens,
        kv_cache_memory_bytes=num_tokens * token_bytes,
        enable_prefix_caching=False,
    ) as engine:
        outputs = engine.generate([case["ids"] for case in cases(name)] * 3, params(name))
        assert preemptions(engine) > 0
    for case, output in zip(cases(name) * 3, outputs, strict=True):
        check(name, case, output.outputs[0])


def test_text_and_prompt_of_a_real_model():
    """Chat template, tokenizer and detokeniser of the GGUF agree with the reference too."""
    with ingle.Engine(model_path(SMOLLM2), device="cpu", max_model_len=512) as engine:
        for case in cases(SMOLLM2):
            assert engine.tokenize(case["input"]) == case["ids"]
        chat = cases(SMOLLM2)[0]
        (output,) = engine.generate(
            [chat["input"]], ingle.SamplingParams(temperature=0, max_tokens=48)
        )
        assert "Paris" in output.outputs[0].text
