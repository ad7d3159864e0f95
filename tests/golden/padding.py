"""Tiny reference models with a tokenizer entry for every row of their vocabulary.

Their tokenizers know fewer ids than the models have rows; the engine takes and samples no id
without a text, the reference does.
"""

import json
import shutil
from pathlib import Path

MODELS = Path(__file__).parent / "models"


def pad_model(name: str, folder: Path) -> Path:
    """Copies the model `name` into `folder` and completes its tokenizer; returns its path."""
    target = folder / name
    shutil.copytree(MODELS / name, target)
    config = json.loads((target / "config.json").read_text())
    rows = config.get("text_config", config)["vocab_size"]
    tokenizer = json.loads((target / "tokenizer.json").read_text())
    known = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"] += [
        {"id": i, "content": f"<unused{i}>", "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False, "special": False}
        for i in range(known, rows)
    ]
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    return target
