"""Writes router_margins.json: how near the routers of the mixtures of experts are to a tie.

For each position of a case's prompt and answer the least distance, over the layers, between the
router logits of the last expert that is taken and the first that is not, in float32. Where it is
small, rounding may choose other experts and change the position wholly; elsewhere it may not, and
the position must be as close to the reference as one of a dense model. Where scores are sigmoids of
the logits, with a correction for the choice, it is four times the distance of what is compared: a
logit that is off by x moves its sigmoid by x / 4 at most.

This stands for a second run with the reference's experts forced, which would need a way to force
them in the engine. An emulation of the kernels' rounding on a CPU takes the reference's experts at
every position that is farther from a tie than 0.05, some nine in ten, and errs there no more than
dense models do.

Run: pip install torch transformers; python make_router_margins.py
"""

import json
from pathlib import Path

import torch
import transformers
from make_fp8 import MODELS, reference

HERE = Path(__file__).parent
EXPERTS = (
    *("mixtral", "qwen3-moe", "qwen3-moe-fp8-block"),
    *("gpt-oss", "glm4_moe", "minimax_m2"),
    *("qwen3_5_moe", "qwen3_next", "llama4"),
)


def margins(name: str) -> list[list[float]]:
    """Of one model, for each case."""
    path = HERE / "models" / name
    if name in MODELS:
        model = reference(path)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    taken = model.config.num_experts_per_tok
    seen = []

    def hook(gate, inputs):
        hidden = inputs[0].reshape(-1, inputs[0].shape[-1])
        logits = torch.nn.functional.linear(hidden, gate.weight, getattr(gate, "bias", None))
        # Glm4Moe's router holds it, MiniMaxM2's gets it.
        correction = getattr(gate, "e_score_correction_bias", inputs[-1])
        if len(inputs) > 1 or hasattr(gate, "e_score_correction_bias"):
            logits = 4 * (logits.sigmoid() + correction)
        best = logits.sort(-1, descending=True).values
        seen.append(best[:, taken - 1] - best[:, taken])

    routers = [
        module
        for module_name, module in model.named_modules()
        if module_name.endswith(("mlp.gate", "mlp.router", "feed_forward.router"))
        and hasattr(module, "weight")
    ]
    for router in routers:
        router.register_forward_pre_hook(hook)
    found = []
    for case in json.loads((HERE / "cases" / f"{name}.json").read_text())["cases"]:
        seen.clear()
        with torch.inference_mode():
            logits = model(torch.tensor([case["ids"] + case["greedy_ids"]])).logits[0]
        ids = torch.tensor(case["top_ids"])
        off = logits[: len(ids)].gather(1, ids) - torch.tensor(case["top_logits"])
        assert off.abs().max() < 1e-3, f"{name}: not the reference's model"
        assert len(seen) == len(routers) > 0
        found.append([round(value, 4) for value in torch.stack(seen).amin(0).tolist()])
    return found


if __name__ == "__main__":
    lines = ",\n".join(f'"{name}": {json.dumps(margins(name))}' for name in EXPERTS)
    (HERE / "router_margins.json").write_text("{\n" + lines + "\n}\n")
