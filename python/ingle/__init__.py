"""ingle: an LLM inference engine. `Engine` runs a model in this process, `ingle serve` over HTTP.

Importing this imports neither torch nor the HTTP server.
"""

from ingle._core import __version__
from ingle.config import Settings
from ingle.engine import Engine
from ingle.engines import Engines
from ingle.errors import (
    ConfigError,
    FailedError,
    FatalError,
    IngleError,
    InternalError,
    ModelError,
    OverloadedError,
    RefusedError,
)
from ingle.outputs import Completion, Delta, RequestOutput, TokenLogprob, Usage
from ingle.sampling import SamplingParams

__all__ = [
    "Completion",
    "ConfigError",
    "Delta",
    "Engine",
    "Engines",
    "FailedError",
    "FatalError",
    "IngleError",
    "InternalError",
    "ModelError",
    "OverloadedError",
    "RefusedError",
    "RequestOutput",
    "SamplingParams",
    "Settings",
    "TokenLogprob",
    "Usage",
    "__version__",
]
