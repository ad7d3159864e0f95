#!/usr/bin/env python3
"""Perplexity of texts under a model: perplexity.py MODEL TEXT... [options of the engine].

The texts are joined and cut into windows, each read as a prompt of its own; every token but the
first of a window counts. Prints one JSON object. MODEL can be demo-bf16: the demo model with bf16
weights, as `--quantization` needs them.
"""

import argparse
import json
import math
import tempfile
from contextlib import ExitStack
from pathlib import Path

import ingle
from bench_cpu import write_bf16
from ingle.demo import resolve_model


def log_probs(engine: ingle.Engine, ids: list[int], window: int) -> list[float]:
    """Of each token but the first of each window, given those before it, in nat."""
    params = ingle.SamplingParams(temperature=0, max_tokens=0, logprobs=0, echo=True)
    windows = [ids[start : start + window] for start in range(0, len(ids), window)]
    outputs = engine.generate([part for part in windows if len(part) > 1], params)
    return [entry.logprob for output in outputs for entry in output.outputs[0].logprobs[1:]]


def perplexity(values: list[float]) -> float:
    """exp of the mean loss."""
    return math.exp(-math.fsum(values) / len(values))


def main() -> None:
    """Scores the texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+", type=Path, metavar="TEXT")
    parser.add_argument("--quantization", choices=["fp8"])
    parser.add_argument("--cpu-precision", choices=["exact", "fast"], default="exact")
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8"], default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--window", type=int, default=512, help="tokens; default: 512")
    parser.add_argument("--limit", type=int, help="number of tokens; default: all")
    options = parser.parse_args()
    text = "\n".join(path.read_text() for path in options.texts)
    with ExitStack() as stack:
        model = options.model
        if model == "demo-bf16":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            model = str(Path(folder) / "demo-bf16.gguf")
            write_bf16(Path(resolve_model("demo")), Path(model))
        engine = ingle.Engine(
            model,
            device=options.device,
            quantization=options.quantization,
            cpu_precision=options.cpu_precision,
            kv_cache_dtype=options.kv_cache_dtype,
            max_model_len=options.window + 1,
        )
        stack.enter_context(engine)
        ids = engine.tokenize(text)[: options.limit]
        values = log_probs(engine, ids, options.window)
        result = {
            "model": engine.info["model"],
            "weights": engine.info["weight_type"],
            "kv_cache": engine.info["kv_cache_dtype"],
            "device": engine.info["device"],
            "tokens": len(values),
            "perplexity": round(perplexity(values), 4),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
