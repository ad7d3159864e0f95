"""Tests that need a GPU: kernels (torch, nvidia-cuda-nvrtc) and whole models (ingle).

Without a GPU none is collected, and the header says so. INGLE_TEST_DEVICE=cpu runs those of whole
models on the cpu device instead: that shows whether the tests work, not whether the GPU does.

What else the machine lacks fails the tests that need it, unless INGLE_TEST_WITHOUT names it.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "golden")]

DEVICE = os.environ.get("INGLE_TEST_DEVICE", "cuda")
WHOLE_MODELS = {
    *("test_engines.py", "test_features.py", "test_lockdown.py", "test_models.py"),
    "test_server.py",
    "test_transformers.py",
}

try:
    import torch
except ImportError:
    torch = None
if DEVICE != "cuda":
    MISSING = ""
elif torch is None:
    MISSING = "torch is not installed"
else:
    MISSING = "" if torch.cuda.is_available() else "no CUDA device"

collect_ignore = []
if MISSING:
    collect_ignore_glob = ["test_*.py"]
else:
    if DEVICE != "cuda":
        collect_ignore += [p.name for p in HERE.glob("test_*.py") if p.name not in WHOLE_MODELS]
    if torch is None or importlib.util.find_spec("transformers") is None:
        collect_ignore.append("test_transformers.py")


def pytest_report_header(config):
    """Names the card, or why something does not run."""
    if MISSING:
        return f"gpu tests: NOT RUN, {MISSING}"
    if DEVICE != "cuda":
        lines = [f"gpu tests: NO GPU, whole models on the device {DEVICE}"]
    else:
        lines = [f"gpu tests: {torch.cuda.get_device_name()}, torch {torch.__version__}"]
    if "test_transformers.py" in collect_ignore:
        lines.append("gpu tests: test_transformers.py NOT RUN, it needs torch and transformers")
    return lines


@pytest.fixture(scope="session", autouse=True)
def sanitizer_runs(request, tmp_path_factory):
    """Those of the sanitizers' tests that are selected, from the start, since they take longest."""
    from sanitizers import start

    chosen = [item for item in request.session.items if item.get_closest_marker("sanitizer")]
    tools = [item.callspec.params["tool"] for item in chosen]
    runs = start(tools, tmp_path_factory.mktemp("sanitizers")) if tools else {}
    yield runs
    for run in runs.values():
        run.stop()


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Paths of the tiny reference models by name."""
    # The tests of kernels need no ingle, so this file does not either.
    from engines import TINY
    from padding import pad_model

    folder = tmp_path_factory.mktemp("models")
    return {name: str(pad_model(name, folder)) for name in TINY}


@pytest.fixture(scope="session")
def engine_for(models, tmp_path_factory):
    """Starts an engine of a reference model; all share one cache of kernels and picks."""
    from engines import start

    cache_dir = tmp_path_factory.mktemp("cache")
    return lambda name, **options: start(name, models, cache_dir, **options)


FIGURES: dict[str, list[str]] = {}


@pytest.fixture
def figure():
    """Keeps a measured value for the end of the run: figure(what, value)."""
    return lambda what, value: FIGURES.setdefault(what, []).append(value)


def pytest_terminal_summary(terminalreporter):
    """The figures that docs/BENCHMARKS.md quotes."""
    if FIGURES:
        terminalreporter.section("figures")
    for what, values in FIGURES.items():
        terminalreporter.line(f"{what}: {', '.join(values)}")


def pytest_collection_modifyitems(items):
    """All of this folder carries the mark."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def _seed():
    """Ends the run where an earlier test has lost the device: all later ones would fail for it."""
    if DEVICE == "cuda":
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            pytest.exit(f"the device is lost since the test before: {error}", returncode=1)
    if torch is not None:
        torch.manual_seed(1234)
