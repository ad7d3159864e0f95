"""The numpy copy of the sampler's definition against the answers that rust/cpu gives too.

The device's sampler is tested against that copy (tests/gpu); here the copy is tied to the
definition, which has a test of its own on the same file (rust/cpu/src/sampler/vectors.rs).
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

from sampler_definition import raw_log_prob, scores
from sampler_vectors import cases, logits_of, params_of

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
OFF |= {"frequency_penalty": 0.0, "logit_bias": [], "allowed_token_ids": None, "mask": None}
OFF |= {"min_tokens": 0, "temperature": 0.0, "nan_at": None}


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
    for name, off in OFF.items():
        on = [case for case in cases() if case[name] != off]
        assert len(on) >= 4, name
        if name == "nan_at":
            assert all(case["token"] is None for case in on)
            continue
        changed = 0
        for case in on:
            values = scores(logits_of(case), params_of(case | {name: off}), case["valid"])
            changed += (None if values is None else int(np.argmax(values))) != case["token"]
        assert changed >= 2, name
