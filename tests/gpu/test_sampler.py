"""The device sampler against the definition, and log-probs and pooling against float64."""

import numpy as np
import pytest
import torch
from contract import place_of
from device import Kernels, poison, relative_error, u32
from sampler_definition import NONE, Params, changed_logits, scores
from sampler_vectors import cases, logits_of, params_of
from sampling import run_sampler
from step import Row, Step

CLOSE = 2e-5  # scores nearer than this may be ordered otherwise: logarithms differ by an ulp


def check(logits, rows, valid, **options):
    """Every token is the reference's, or scores within CLOSE of it; also counts the misses."""
    result, misses = run_sampler(torch.from_numpy(logits).cuda(), rows, valid, **options), 0
    for i, params in enumerate(rows):
        expected, token, slot = scores(logits[i], params, valid), int(result.out[i, 0]), 2 * i + 1
        position = result.slots[slot, place_of("Slot", "position")]
        if expected is None:
            assert result.out[i, 1] == 1, i
            assert position == len(params.generated)
            continue
        assert result.out[i, 1] == 0, i
        assert result.last_token[slot] == token
        assert position == len(params.generated) + 1
        best = int(expected.argmax())
        if token != best:
            misses += 1
            assert params.temperature > 0, i
            assert expected[token] > expected[best] - CLOSE, (i, params, token, best)
    assert (result.out[len(rows) :, 1] == NONE).all()
    return result, misses


def random_params(rng, vocab):
    params = Params(
        temperature=float(rng.choice([0.0, 0.2, 0.7, 1.0, 1.6])), seed=int(rng.integers(0, 2**63))
    )
    params.choice, params.generated = (
        int(rng.integers(0, 4)),
        rng.integers(0, vocab, rng.integers(0, 40)).tolist(),
    )
    if rng.random() < 0.5:
        params.top_k = int(rng.choice([1, 2, 40, 1000, vocab]))
    if rng.random() < 0.5:
        params.top_p = float(rng.choice([1e-6, 0.1, 0.5, 0.9, 0.99]))
    if rng.random() < 0.4:
        params.min_p = float(rng.choice([1e-4, 0.05, 1.0]))
    if rng.random() < 0.3:
        params.top_n_sigma = float(rng.choice([0.1, 1.0, 3.0]))
    if rng.random() < 0.4:
        params.repetition_penalty, params.presence_penalty = (
            float(rng.choice([1.0, 1.3, 0.8])),
            float(rng.choice([0.0, 0.6])),
        )
        params.frequency_penalty, params.prompt = (
            float(rng.choice([0.3, -0.2])),
            rng.integers(0, vocab, 30).tolist(),
        )
    if rng.random() < 0.3:
        params.bias = {
            int(t): float(rng.normal() * 8) for t in rng.choice(vocab, 20, replace=False)
        }
    if rng.random() < 0.3:
        params.allowed, params.late_mask = (
            rng.random(vocab) < rng.choice([0.01, 0.9]),
            bool(rng.random() < 0.5),
        )
        params.allowed[int(rng.integers(0, vocab // 2))] = True
    if rng.random() < 0.3:
        params.min_tokens, params.banned = (
            int(rng.integers(0, 50)),
            rng.integers(0, vocab, 5).tolist(),
        )
    if rng.random() < 0.3:
        params.log_probs = int(rng.integers(0, 21))
    return params


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("vocab", "spread", "seed"),
    [
        (1000, 3, 0),
        (4095, 3, 8),
        (4096, 3, 1),
        (4097, 8, 2),
        (50257, 2.5, 3),
        (128256, 2.5, 4),
        (128256, 0.01, 5),
        (32000, 60, 6),
        (151936, 1, 7),
    ],
)
def test_samples_are_the_definition_s(vocab, spread, seed, exact):
    rng = np.random.default_rng(seed)
    rows = [random_params(rng, vocab) for _ in range(40)]
    logits = (rng.normal(size=(40, vocab)) * spread).astype(np.float32)
    _, misses = check(logits, rows, vocab - 7, exact=exact)
    assert misses <= 1


def test_the_definition_s_own_answers():
    """tests/golden/sampler_vectors.json, which rust/cpu answers too."""
    for case in cases():
        logits = torch.from_numpy(logits_of(case)[None].copy()).cuda()
        result = run_sampler(logits, [params_of(case)], case["valid"], exact=False)
        token, bad = result.out[0, :2].tolist()
        assert bad == (case["token"] is None), case["name"]
        if case["token"] is not None:
            assert token == case["token"], case["name"]
            assert abs(result.out.view(np.float32)[0, 2] - case["log_prob"]) < 1e-4, case["name"]
            assert result.out[0, 3] == case["rank"], case["name"]


@pytest.mark.parametrize("value", [0.0, -3.5])
def test_equal_logits_are_sampled_as_the_definition_does(value):
    rows = [
        Params(),
        Params(temperature=1.0, seed=3),
        Params(temperature=1.0, top_k=5),
        Params(temperature=1.0, top_k=70000, seed=1),
        Params(temperature=1.0, top_p=0.5, seed=9),
        Params(temperature=1.0, top_k=9000, top_p=0.3, min_p=0.5),
    ]
    logits = np.full((len(rows), 128256), value, np.float32)
    logits[:, 5000:5100] += np.float32(0.5) * (value != 0)
    check(logits, rows, 128256)


def test_greedy_takes_the_lowest_id():
    logits = np.zeros((4, 20000), np.float32)
    for row, ids in enumerate([(5, 19999), (4095, 4096), (8191, 17), (19998, 19999)]):
        logits[row, list(ids)] = 7
    result, misses = check(logits, [Params() for _ in range(4)], 19999)
    assert misses == 0
    assert result.out[:4, 0].tolist() == [5, 4095, 17, 19998]


def test_rows_that_are_not_finite():
    logits = np.random.default_rng(0).normal(size=(6, 9000)).astype(np.float32)
    logits[0, 8999], logits[1, 0], logits[2, 4096] = np.nan, np.inf, -np.inf
    rows = [
        Params(),
        Params(temperature=1.0),
        Params(temperature=1.0, top_k=3),
        Params(),
        Params(),
        Params(),
    ]
    rows[3].allowed = np.zeros(9000, bool)
    rows[4].allowed, rows[4].temperature, rows[4].top_p = np.zeros(9000, bool), 1.0, 0.5
    rows[5].allowed = np.arange(9000) == 77
    result, _ = check(logits, rows, 8000)
    assert result.out[:6, 1].tolist() == [1, 1, 1, 1, 1, 0]
    assert result.out[5, 0] == 77


def test_counts_follow_the_output():
    params = Params(presence_penalty=0.5, prompt=[3, 3, 8], generated=[3, 9, 9, 40])
    rows = [params, Params(frequency_penalty=1.0, prompt=[0], generated=[5])]
    logits = np.zeros((2, 101), np.float32)
    logits[0, 9], logits[1, 7] = 50, 50
    result, _ = check(logits, rows, 101)
    counts = result.counts.cpu().numpy().view(np.uint16)
    expected = np.zeros(101, np.uint16)
    expected[3], expected[8], expected[9], expected[40] = 0x8001, 0x8000, 3, 1
    assert (counts[1] == expected).all()
    assert counts[3, [0, 5, 7]].tolist() == [0x8000, 1, 1]
    assert (counts[[0, 2]] == 0xFFFF).all()


def test_draws_follow_the_distribution():
    rng, draws, vocab = np.random.default_rng(1), 60000, 40
    row = (rng.normal(size=vocab) * 1.5).astype(np.float32)
    for filters in (
        {},
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 12, "top_p": 0.9, "min_p": 0.02},
    ):
        rows = [Params(temperature=0.9, seed=i * 7919, **filters) for i in range(draws // 10)]
        result = run_sampler(torch.from_numpy(np.tile(row, (len(rows), 1))).cuda(), rows, vocab)
        seen = np.bincount(result.out[: len(rows), 0], minlength=vocab)
        kept = np.isfinite(scores(row, rows[0], vocab))
        weight = np.where(kept, np.exp(row.astype(np.float64) / 0.9), 0)
        expected = weight / weight.sum() * len(rows)
        assert not seen[~kept].any()
        likely = expected > 5
        chi2 = ((seen - expected)[likely] ** 2 / expected[likely]).sum()
        degrees = likely.sum() - 1
        assert chi2 < degrees + 5 * (2 * degrees) ** 0.5 + 5, (filters, chi2, degrees)


def test_rows_do_not_depend_on_the_batch():
    rng = np.random.default_rng(5)
    rows = [random_params(rng, 30000) for _ in range(30)]
    logits = (rng.normal(size=(30, 30000)) * 3).astype(np.float32)
    together = run_sampler(torch.from_numpy(logits).cuda(), rows, 30000).out
    for i in range(0, 30, 7):
        alone = run_sampler(
            torch.from_numpy(logits[i : i + 1].copy()).cuda(), rows[i : i + 1], 30000
        ).out
        assert (alone[0, :2] == together[i, :2]).all()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("vocab", "valid"), [(37, 30), (511, 511), (513, 512), (5000, 5000), (128256, 128000)]
)
@pytest.mark.parametrize("spread", [0.0, 2.0, 30.0])
def test_log_probs_are_near_float64(vocab, valid, spread, exact):
    logits = torch.randn(9, vocab, device="cuda") * spread
    targets = torch.randint(0, valid, (9,))
    targets[0] = logits[0, :valid].argmax()
    for k in (0, 1, 20):
        out = poison(9, 48, dtype=torch.int32)
        kernels = Kernels("log_probs", {"vocab_size": vocab, "sample_vocab": valid}, exact)
        kernels.launch("log_probs_rows_f32_sm80", 9, 512, logits, u32(targets), k, out)
        words = out.cpu().numpy()
        reals, expected = words.view(np.float32), logits.double().log_softmax(-1).cpu().numpy()
        for i, token in enumerate(targets.tolist()):
            x = logits[i, :valid].cpu().numpy()
            order = np.lexsort((np.arange(valid), -x))
            assert words[i, [0, 1, 4]].tolist() == [token, 0, k]
            assert abs(reals[i, 2] - expected[i, token]) < 1e-4
            assert words[i, 3] == 1 + int(np.flatnonzero(order == token)[0])
            assert words[i, 8 : 8 + k].tolist() == order[:k].tolist()
            assert np.abs(reals[i, 28 : 28 + k] - expected[i, order[:k]]).max(initial=0) < 1e-4


def test_log_probs_say_that_a_row_is_not_finite():
    logits = torch.randn(2, 5000, device="cuda")
    logits[1, 4999] = float("nan")
    out = poison(2, 48, dtype=torch.int32)
    kernels = Kernels("log_probs", {"vocab_size": 5000, "sample_vocab": 4000})
    kernels.launch("log_probs_rows_f32_sm80", 2, 512, logits, u32([1, 2]), 5, out)
    assert out[:, 1].tolist() == [0, 1]


def test_log_probs_of_samples_are_those_of_raw_logits():
    rng = np.random.default_rng(2)
    rows = [
        Params(temperature=1.0, seed=i, bias={3: 40.0}, log_probs=k)
        for i, k in enumerate([0, 5, 20, None])
    ]
    logits = (rng.normal(size=(4, 3000)) * 2).astype(np.float32)
    result, _ = check(logits, rows, 3000)
    expected = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    for i, params in enumerate(rows):
        if params.log_probs is None:
            continue
        assert result.out[i, 0] == 3
        assert abs(result.out.view(np.float32)[i, 2] - expected[i, 3]) < 1e-4
        assert result.out[i, 4] == params.log_probs
        assert result.out[i, 3] == 1 + (logits[i] > logits[i, 3]).sum()
    assert changed_logits(logits[0], rows[0], 3000)[3] > 30


@pytest.mark.parametrize("hidden", [64, 248, 256, 264, 576, 4096])
def test_pooled_states_do_not_depend_on_chunks(hidden):
    lengths, dims = {4: 5, 0: 1, 7: 300, 2: 9}, {"hidden_size": hidden, "num_slots": 8}
    weight, accum = torch.rand(hidden, device="cuda"), poison(8, hidden, dtype=torch.float32)
    kernels, data = (
        Kernels("pool", dims),
        {s: torch.randn(n, hidden, device="cuda") for s, n in lengths.items()},
    )

    def run(parts):
        """parts: (slot, start, end, flags)."""
        rows = [Row(slot, start, end - start, [0] * (end - start)) for slot, start, end, _ in parts]
        meta = Step(rows).meta()
        for i, (_, _, _, flags) in enumerate(parts):
            meta[16 + 8 * i + 4] = flags
        x = torch.cat([data[slot][start:end] for slot, start, end, _ in parts])
        scale, out = (
            poison(len(x), dtype=torch.float32),
            poison(len(parts) + 2, hidden, dtype=torch.float32),
        )
        kernels.launch("pool_scale_f32_sm80", len(x), 256, x, scale, 1e-6)
        kernels.launch(
            "pool_rows_f32_sm80",
            (len(parts) + 2, -(-hidden // 256)),
            256,
            meta,
            x,
            scale,
            weight,
            accum,
            out,
        )
        return out

    def normed(slot):
        x = data[slot].double()
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()

    first = run([(4, 0, 5, 1 + 4), (0, 0, 1, 2 + 4), (7, 0, 200, 1), (2, 0, 9, 0)])
    assert relative_error(first[0], normed(4).mean(0)) < 1e-6
    assert relative_error(first[1], normed(0)[-1]) < 1e-6
    assert first[2:].isnan().all()
    second = run([(7, 200, 300, 1 + 4), (2, 4, 9, 2 + 4)])
    assert relative_error(second[0], normed(7).mean(0)) < 1e-6
    assert relative_error(second[1], normed(2)[-1]) < 1e-6
