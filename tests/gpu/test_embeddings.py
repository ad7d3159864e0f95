"""Embedding checkpoints on the GPU against transformers, causal and bidirectional.

The reference is float32 (tests/golden/embeddings); weights, activations and keys are bf16 here.
"""

import json
import os

import numpy
import pytest

from server.worker import MODELS, Worker

DEVICE = os.environ.get("INGLE_TEST_DEVICE", "cuda")
EMBEDDINGS = MODELS.parent / "embeddings"
CASES = json.loads((EMBEDDINGS / "cases.json").read_text())
NAMES = sorted(name for name in CASES if name != "made_with")
COSINE = 0.999


@pytest.mark.parametrize("variant", ["graphs", "eager", "deterministic"])
@pytest.mark.parametrize("name", NAMES)
def test_embeddings_are_the_reference_s(name, variant, tmp_path_factory):
    flags = ["--device", DEVICE, "--max-model-len", 512, "--max-num-seqs", 8]
    if DEVICE == "cuda":
        flags += ["--cache-dir", tmp_path_factory.getbasetemp() / "cache"]
        flags += ["--enforce-eager"] * (variant == "eager")
    flags += ["--deterministic"] * (variant == "deterministic")
    expected = numpy.array([case["embedding"] for case in CASES[name]])
    expected /= numpy.linalg.norm(expected, axis=1, keepdims=True)
    inputs = [case["ids"] for case in CASES[name]]
    with Worker(*flags, model=EMBEDDINGS / name) as worker:
        for batch in (inputs, inputs[::-1], *([one] for one in inputs)):
            reply = worker.post("/v1/embeddings", {"input": batch})
            assert reply.status == 200, reply.body
            found = numpy.array([item["embedding"] for item in reply.json["data"]])
            found /= numpy.linalg.norm(found, axis=1, keepdims=True)
            for ids, vector in zip(batch, found, strict=True):
                cosine = float(vector @ expected[inputs.index(ids)])
                assert cosine > COSINE, f"{len(ids)} tokens: {cosine}"
        assert worker.stop() == 0, worker.errors()
