"""The libraries of libraries.c for a test: builds them, and says which call fails."""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("libraries.c")
NUM_ROWS, ROW = 256, struct.Struct("48sIIii")
COMPILER = shutil.which("cc")

OUT_OF_MEMORY = 2
"""An error that passes."""
ILLEGAL_ADDRESS = 700
"""An error after which the context is lost."""


def build(folder):
    """The shared object; its name for the loader is libcuda.so.1."""
    path = folder / "libcuda.so.1"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{path.name}"]
    subprocess.run([COMPILER, *flags, "-o", path, SOURCE], check=True)
    return path


class Table:
    """Which call fails, how often each was made, and what is alive; see libraries.c."""

    def __init__(self, path):
        self.path = path
        path.write_bytes(bytes(NUM_ROWS * ROW.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def _rows(self):
        for place in range(0, len(self._memory), ROW.size):
            name, *values = ROW.unpack_from(self._memory, place)
            yield place, name.rstrip(b"\0").decode(), values

    def clear(self):
        self._memory[:] = bytes(len(self._memory))

    def calls(self):
        """How often each function was called."""
        return {name: values[0] for _, name, values in self._rows() if values[0]}

    def alive(self):
        """What was made and not ended, by kind."""
        return {name: values[3] for _, name, values in self._rows() if values[3]}

    def has_failed(self):
        """Whether the call that was to fail has been made."""
        return any(values[1] and values[0] >= values[1] for _, _, values in self._rows())

    def fail(self, name, number, code):
        """The `number`-th call of `name` from now on, counted from 1, ends with `code`."""
        for place, found, (calls, _, _, alive) in self._rows():
            if found in (name, ""):
                row = (name.encode(), calls, calls + number, code, alive)
                ROW.pack_into(self._memory, place, *row)
                return
        raise AssertionError("the table is full")
