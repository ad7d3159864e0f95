"""Models divided among ranks: on one GPU that all ranks share, and on as many GPUs as ranks.

On one GPU the kernels, streams, graphs and regions are those of several, and the memory between the
ranks is the GPU's own. Users are refused both so far (INGLE_CUDA_RANKS is for tests).
"""

import pytest
import torch
from engines import DEVICE, SMOLLM2, cases, graphs, start, steps
from forced import follow, score
from padding import pad_model
from test_models import check_answers, check_scores, prompts_of

import ingle

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")

# Dense with biases, norms of heads, post norms, windows, grouped heads and fewer heads of keys than
# ranks; experts, also beside a shared network; a real model in GGUF's blocks.
RANKS = {
    "llama-bias": 2,
    "llama-gqa4-headdim32": 4,
    "qwen3": 2,
    "gemma2": 2,
    "gemma3": 2,
    "phi3": 2,
    "mixtral": 2,
    "glm4_moe": 2,
    SMOLLM2: 3,
}


@pytest.fixture(params=["one-gpu", "gpus"], autouse=True)
def where(request, monkeypatch):
    """Skips by name where there are not as many GPUs as ranks."""
    monkeypatch.setenv("INGLE_CUDA_RANKS", request.param)
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name")
    ranks, gpus = RANKS.get(name, 2), torch.cuda.device_count()
    if request.param == "gpus" and gpus < ranks:
        pytest.skip(f"needs {ranks} GPUs, this machine has {gpus}")
    return request.param


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: str(pad_model(name, folder)) for name in RANKS if name != SMOLLM2}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("name", RANKS)
def test_a_divided_model_obeys_the_bf16_rule(name, models, cache_dir):
    todo = cases(name)[:8]
    prompts, references = prompts_of(todo)
    options = {"tensor_parallel_size": RANKS[name], "enable_prefix_caching": False}
    with start(name, models, cache_dir, **options) as engine:
        assert graphs(engine, "failed") == 0
        whole = [prompt + answer for prompt, answer in zip(prompts, references, strict=True)]
        check_scores(name, todo, score(engine, whole))
        check_answers(name, todo, follow(engine, prompts, references))
        assert steps(engine, "graph") > 0


def test_plain_launches_give_the_answers_of_graphs(models, cache_dir):
    prompts, _ = prompts_of(cases("qwen3"))
    params = ingle.SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True)
    answers = []
    for eager in (False, True):
        options = {"tensor_parallel_size": 2, "enforce_eager": eager}
        with start("qwen3", models, cache_dir, **options) as engine:
            answers.append([o.outputs[0].token_ids for o in engine.generate(prompts, params)])
            assert (steps(engine, "graph") > 0) == (not eager)
    assert answers[0] == answers[1]


def test_a_row_has_the_same_bits_in_every_batch(models, cache_dir):
    prompts, _ = prompts_of(cases("llama-bias"))
    params = ingle.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)
    options = {"tensor_parallel_size": 2, "deterministic": True}
    with start("llama-bias", models, cache_dir, **options) as engine:
        batch = [output.outputs[0] for output in engine.generate(prompts, params)]
        alone = [engine.generate([prompt], params)[0].outputs[0] for prompt in prompts]
    for one, other in zip(batch, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert [t.logprob for t in one.logprobs] == [t.logprob for t in other.logprobs]


def test_masks_and_penalties_reach_every_rank(models, cache_dir):
    """Each rank samples for itself: one that lacked a mask would go on from another token."""
    prompts, _ = prompts_of(cases("qwen3"))
    params = ingle.SamplingParams(
        temperature=0.9,
        seed=3,
        max_tokens=48,
        ignore_eos=True,
        frequency_penalty=0.7,
        logit_bias={7: -3.0, 9: 2.5},
        bad_words=["a", "e"],
        logprobs=0,
    )
    greedy = ingle.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=0)
    options = {"tensor_parallel_size": 2, "enable_prefix_caching": False}
    with start("qwen3", models, cache_dir, **options) as engine:
        answers = [output.outputs[0] for output in engine.generate(prompts, params)]
        whole = [p + list(a.token_ids) for p, a in zip(prompts, answers, strict=True)]
        (once,) = engine.generate([whole[0]], greedy)
        # The keys of all tokens computed at once: those that each rank has sampled are the same.
        again = score(engine, [whole[0] + list(once.outputs[0].token_ids)])[0][-24:]
    assert all(len(answer.token_ids) == 48 for answer in answers)
    for decoded, scored in zip(once.outputs[0].logprobs, again, strict=True):
        assert abs(decoded.logprob - scored.logprob) < 0.15


def test_ranks_on_one_gpu_must_say_their_memory(where, models, cache_dir):
    if where != "one-gpu":
        pytest.skip("of one GPU")
    with pytest.raises(ingle.errors.ModelError, match="kv_cache_memory_bytes must say each one's"):
        start("qwen3", models, cache_dir, tensor_parallel_size=2, kv_cache_memory_bytes=None)
