"""The numpy copy of the sampler's definition against the answers that rust/cpu gives too.

The device's sampler is tested against that copy (tests/gpu); here the copy is tied to the
definition, which has a test of its own on the same file (rust/cpu/src/sampler/vectors.rs).
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

from contract import CONSTANTS, FIELDS
from sampler_definition import NONE, Params, f32, raw_log_prob, scores
from sampler_vectors import (
    LEAST_DECIDED,
    cases,
    logits_of,
    num_decided,
    off_values,
    params_of,
)


def test_the_copy_gives_the_definition_s_answers():
    for case in cases():
        values = scores(logits_of(case), params_of(case), case["valid"])
        token = None if values is None else int(values.argmax())
        assert token == case["token"], case["name"]
        if token is not None:
            off = abs(raw_log_prob(logits_of(case), token) - case["log_prob"])
            assert off < 1e-9, case["name"]


def test_each_parameter_has_cases_and_decides_some():
    """A parameter that is forgotten would change answers: turned off, each changes some."""
    known = cases()
    for name, off in off_values().items():
        on = [case for case in known if case[name] != off]
        assert len(on) >= 4, name
        if name == "nan_at":
            assert all(case["token"] is None for case in on)
        else:
            assert num_decided(known, name, off) >= LEAST_DECIDED, name


def test_a_row_of_the_copy_is_the_slot_that_the_kernels_read():
    params = Params(
        **{"temperature": 0.5, "top_k": 7, "presence_penalty": 1, "min_tokens": 6},
        **{"seed": 0x1_0000_0002, "choice": 3, "generated": [8] * 9, "log_probs": 4},
        **{"bias": {1: 2.0}, "banned": [1, 2], "allowed": np.ones(9, bool)},
    )
    words = dict(zip(FIELDS["Slot"], params.words(), strict=True))
    assert words["flags"] == CONSTANTS["SLOT_HAS_MASK"] | CONSTANTS["SLOT_HAS_PENALTIES"]
    for name in ("temperature", "top_p", "min_p", "presence_penalty"):
        assert f32(getattr(params, name)) == np.uint32(words[name]).view(f32), name
    expected = {"top_k": 7, "min_tokens": 6, "seed_low": 2, "seed_high": 1, "choice": 3}
    expected |= {"position": 9, "log_probs": 4, "bias_len": 1, "banned_len": 2}
    assert expected.items() <= words.items()
    assert dict(zip(FIELDS["Slot"], Params().words(), strict=True))["log_probs"] == NONE
