"""Reads tests/golden/sampler_vectors.json; run as a program, makes it from the numpy definition.

The answers belong to no implementation: rust/cpu, the numpy definition and the kernels each have a
test that gives them. Logits are those of `logits_of`, exact in every language. No torch here.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields
from pathlib import Path

import numpy as np
from sampler_definition import Params, f32, raw_log_prob, scores

PATH = Path(__file__).resolve().parents[1] / "golden" / "sampler_vectors.json"
NUM_CASES = 120
MOST_CASES = 400
LEAST_DECIDED = 2  # cases whose answer changes when a parameter is turned off
FILTERS = ("top_p", "min_p", "top_n_sigma")
MARGIN = 1e-3  # between the best two scores: rounding must not decide


def cases() -> list[dict]:
    """All of them."""
    return json.loads(PATH.read_text())["cases"]


def logits_of(case: dict) -> np.ndarray:
    """[vocab] f32: bits 20 to 31 of x = 1664525 x + 1013904223 (mod 2^32), scaled."""
    x, values = case["logits_seed"], np.empty(case["vocab"], f32)
    for i in range(case["vocab"]):
        x = (x * 1664525 + 1013904223) % 2**32
        values[i] = ((x >> 20) - 2048) / 2048 * case["logits_scale"]
    if case["nan_at"] is not None:
        values[case["nan_at"]] = np.nan
    return values


def params_of(case: dict) -> Params:
    """The numpy definition's parameters; a mask comes with the sample."""
    listed = case["mask"] if case["mask"] is not None else case["allowed_token_ids"]
    allowed = None if listed is None else np.isin(np.arange(case["vocab"]), listed)
    return Params(
        **{each.name: case[each.name] for each in fields(Params) if each.name in case},
        banned=case["min_tokens_banned"],
        bias=dict(case["logit_bias"]),
        allowed=allowed,
        late_mask=case["mask"] is not None,
        choice=case["choice_index"],
        log_probs=0,
    )


def drawn(rng: np.random.Generator, number: int) -> dict:
    """One case without its answer; each parameter is on in two of five."""
    vocab = int(rng.choice([37, 300, 5000]))

    def on() -> bool:
        return bool(rng.random() < 0.4)

    def ids(count: int) -> list[int]:
        return rng.choice(vocab, min(count, vocab), replace=False).tolist()

    def some(values: list, off):
        return rng.choice(values).item() if on() else off

    listed = sorted(ids(int(rng.choice([1, 20, min(vocab // 2, 150)])))) if on() else None
    is_mask = listed is not None and rng.random() < 0.5
    biased = ids(9) if on() else []
    case = {
        "name": f"drawn {number}",
        "vocab": vocab,
        "valid": vocab - int(rng.choice([0, 7])),
        "logits_seed": int(rng.integers(0, 2**32)),
        "logits_scale": rng.choice([0.0625, 4.0, 16.0]).item(),
        "nan_at": int(rng.integers(0, vocab)) if rng.random() < 0.04 else None,
        "temperature": rng.choice([0.0, 0.3, 0.7, 1.0, 1.7]).item(),
        "top_k": some([1, 3, 40, 1000], 0),
        "top_p": some([0.05, 0.5, 0.9, 0.99], 1.0),
        "min_p": some([0.0001, 0.05, 0.5], 0.0),
        "top_n_sigma": some([0.4, 1.0, 2.0], 0.0),
        "repetition_penalty": some([0.8, 1.3, 2e-38], 1.0),
        "presence_penalty": some([-1.5, 0.6], 0.0),
        "frequency_penalty": some([-0.7, 1.2], 0.0),
        "logit_bias": [[i, rng.choice([-100.0, -2.5, 2.5]).item()] for i in biased],
        "allowed_token_ids": None if is_mask else listed,
        "mask": listed if is_mask else None,
        "min_tokens": some([3, 50], 0),
        "seed": int(rng.integers(0, 2**64, dtype=np.uint64)),
        "choice_index": int(rng.integers(0, 4)),
    }
    # Penalties and bans decide something where they touch likely ids.
    likely = np.argsort(-logits_of(case), kind="stable")[:10]
    case["prompt"] = ids(10) + rng.choice(likely, 4).tolist()
    case["generated"] = rng.choice(likely, int(rng.integers(0, 12))).tolist()
    case["min_tokens_banned"] = ids(8) + rng.choice(likely, 3).tolist()
    return case


def off_values() -> dict:
    """The parameters of a case, each with the value that turns it off."""
    other = {"seed", "choice", "log_probs"}
    plain = [each for each in fields(Params) if isinstance(each.default, int | float)]
    off = {each.name: each.default for each in plain if each.name not in other}
    off |= {"logit_bias": [], "allowed_token_ids": None, "mask": None, "nan_at": None}
    return {name: value for name, value in off.items() if name != "late_mask"}


def decides(case: dict, name: str, off: object) -> bool:
    """Whether the case has another answer with one parameter turned off."""
    if case[name] == off:
        return False
    values = scores(logits_of(case), params_of(case | {name: off}), case["valid"])
    return (None if values is None else int(np.argmax(values))) != case["token"]


def num_decided(some: list[dict], name: str, off: object) -> int:
    """How many cases one parameter decides."""
    return sum(decides(case, name, off) for case in some)


def answered(case: dict) -> dict | None:
    """With the definition's answer; None where rounding could decide it."""
    logits, params = logits_of(case), params_of(case)
    values = scores(logits, params, case["valid"])
    if values is None:
        return case | {"token": None, "log_prob": None, "rank": None}
    order = np.argsort(-values, kind="stable")
    token = int(order[0])
    if values[order[0]] - values[order[1]] < MARGIN:
        return None
    for factor in (1 - 1e-5, 1 + 1e-5):  # nor may a filter's edge lie under an id
        moved = params_of(case | {name: case[name] * factor for name in FILTERS})
        if not (np.isfinite(scores(logits, moved, case["valid"])) == np.isfinite(values)).all():
            return None
    better = logits[: case["valid"]] > logits[token]
    same = (logits[: case["valid"]] == logits[token])[:token]
    rank = 1 + int(better.sum()) + int(same.sum())
    return case | {"token": token, "log_prob": raw_log_prob(logits, token), "rank": rank}


def main() -> None:
    """Writes the file."""
    rng, done = np.random.default_rng(20), []
    off = {name: value for name, value in off_values().items() if name != "nan_at"}
    decided = Counter(dict.fromkeys(off, 0))
    while len(done) < NUM_CASES or min(decided.values()) < LEAST_DECIDED:
        if len(done) >= MOST_CASES:
            raise SystemExit("a parameter decides too few cases: draw stronger values of it")
        case = answered(drawn(rng, len(done)))
        if case is not None:
            done.append(case)
            decided.update(name for name, value in off.items() if decides(case, name, value))
    lines = ",\n".join(json.dumps(case) for case in done)
    PATH.write_text(f'{{"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
