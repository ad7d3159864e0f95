"""Memory of this process. Any thread."""

from ingle import _core

give_back_memory = _core.give_back_memory
"""Gives what the allocator keeps and nothing uses back to the system; milliseconds."""
