"""`ingle bench URL`: load on any OpenAI-compatible server, and what it cost."""

from ingle.bench.run import BenchOptions, run

__all__ = ["BenchOptions", "run"]
