"""Names for Python's threads that the system shows too, in top and in /proc. The calling thread."""

from concurrent.futures import ThreadPoolExecutor

from ingle import _core


def name_thread(name: str) -> None:
    """Names the calling thread; the system keeps the first 15 bytes."""
    _core.name_thread(name)


def thread_pool(num_threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads are called `name`. It starts them as work comes."""
    return ThreadPoolExecutor(num_threads, name, initializer=name_thread, initargs=(name,))
