"""`ingle bench URL`: load on any OpenAI-compatible server, and what it cost."""

from ingle.bench.run import BenchError, BenchOptions, run
from ingle.bench.workload import WorkloadError

__all__ = ["BenchError", "BenchOptions", "WorkloadError", "run"]
