"""Kernel tests: need a GPU, torch and nvidia-cuda-nvrtc.

Without them none is collected, and the header says so.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

try:
    import torch

    MISSING = "" if torch.cuda.is_available() else "no CUDA device"
except ImportError:
    MISSING = "torch is not installed"
if MISSING:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header(config):
    """Names the card, or why nothing runs."""
    if MISSING:
        return f"gpu tests: NOT RUN, {MISSING}"
    return f"gpu tests: {torch.cuda.get_device_name()}, torch {torch.__version__}"


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1234)
