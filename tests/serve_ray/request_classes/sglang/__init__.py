"""SGLang's folder without SGLang's own `__init__`, which imports torch.

On the Python path of Ray's processes, so that Ray finds SGLang's request classes.
"""

from importlib.metadata import distribution

__path__ = [str(distribution("sglang").locate_file("sglang"))]
