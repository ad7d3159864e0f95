"""Locks this process down: `ingle serve` does it by itself, other front ends by calling `Lockdown`.

Main thread. `shed` and `confine` need a process with one thread, so they come before `Engine`;
`finish` comes when everything is warm, just before requests are taken. Nothing can be undone. The
policies are files of security/policy; docs/OPERATIONS.md says what each layer is.

    lockdown = Lockdown("auto", device="cpu")
    lockdown.shed()
    lockdown.confine(read=["/srv/models/llama"])
    engine = ingle.Engine("/srv/models/llama", device="cpu")
    ...  # Start the front end's own threads and import what it imports late.
    engine.core.seal_device()  # Waits until the device has recorded its graphs.
    lockdown.finish()

A GPU may also record its graphs while the process serves: `finish(device, recording=True)`, and
`end_recording` after `seal_device`, unless that says False.
"""

import codecs
import json
import os
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from ingle import _core
from ingle.errors import HardeningError

Mode = Literal["auto", "strict", "off"]


@dataclass(frozen=True)
class Layer:
    """One part of the lock-down."""

    name: str
    on: bool
    what: str
    """How it is in force, or why it is not."""


class Lockdown:
    """The lock-down of this process, step by step. With mode `off` the steps do nothing."""

    def __init__(self, mode: Mode, *, device: str = "auto", trace: bool = False) -> None:
        """`trace`: print what the tight filter would refuse, and let it through."""
        self.mode = mode
        self.layers: list[Layer] = [] if self.is_on else [Layer("all", False, "hardening is off")]
        """What is in force and what is missing, as far as the steps have come."""
        self._has_gpu = _core.may_use_gpu(device)
        self._trace = trace
        self._gpu_driver: int | None = None
        self._open_files: list[str] = []
        self._sleeps = False
        self._python = python_folders()

    @property
    def is_on(self) -> bool:
        """Whether the steps do anything."""
        return self.mode != "off"

    @property
    def traces(self) -> bool:
        """Whether it lets through and prints what it would refuse."""
        return self._trace

    def missing(self) -> list[str]:
        """The layers that are not in force, each as `name: why`."""
        return [f"{layer.name}: {layer.what}" for layer in self.layers if not layer.on]

    def lines(self) -> list[str]:
        """For people: how much is in force, then what is missing."""
        if not self.is_on:
            return ["off"]
        num_on = sum(layer.on for layer in self.layers)
        return [
            f"{self.mode}: layers in force: {num_on}",
            *(f"missing: {m}" for m in self.missing()),
        ]

    def summary(self) -> dict[str, Any]:
        """For /health: the mode, the layers in force, and those missing with their reasons."""
        on = {layer.name: layer.what for layer in self.layers if layer.on}
        missing = {layer.name: layer.what for layer in self.layers if not layer.on}
        return {"mode": self.mode, "on": on, "missing": missing}

    def metrics(self) -> bytes:
        """For /metrics: a gauge of each layer, 1 in force and 0 missing."""
        lines = [
            "# HELP ingle:hardening Layers of the lock-down: 1 in force, 0 missing.",
            "# TYPE ingle:hardening gauge",
            *(f'ingle:hardening{{layer="{each.name}"}} {each.on:d}' for each in self.layers),
        ]
        return "\n".join(lines).encode() + b"\n"

    def shed(self, keep: Sequence[int] = (), user: tuple[int, int] | None = None) -> None:
        """Closes descriptors but `keep`, empties the environment, gives up user and privileges.

        `user`: user and group to become, for a process that root has started.
        Errors: HardeningError; the process must then end.
        """
        if not self.is_on:
            return
        # Before the user changes: perhaps only root can read some files, even the interpreter's.
        warm_up()
        wait_for_joined_threads()
        self._add(_core.harden_shed(self._start(keep=list(keep), user=user)))
        self.layers.append(Layer("environment", True, f"{empty_environment()} variables removed"))
        time.tzset()  # The zone's file, by the name that it has now.
        time.localtime()

    def confine(self, read: Iterable[str | Path] = (), write: Iterable[str | Path] = ()) -> None:
        """From here on the process can open libraries, `read` and `write`, and nothing else.

        Errors: HardeningError, with mode `strict` also for what is missing here.
        """
        if not self.is_on:
            return
        reads = [*self._python, *library_folders(), *absolute(read)]
        start = self._start(read=reads, write=absolute(write))
        self._add(_core.harden_confine(start))
        self._refuse_lacks()

    def finish(
        self,
        device: str = "",
        *,
        recording: bool = False,
        sleeps: bool = False,
        open_files: Sequence[str] = (),
    ) -> None:
        """The tight filter on all threads, and the proof that it holds. `device`: the engine's.

        `recording`: allow what recording graphs needs, until `end_recording`. `sleeps`: allow
        what `Engine.sleep` needs on a GPU. `open_files`: those that stay open for reading,
        `Engine.info["open_files"]`.
        Errors: HardeningError; the process must then end.
        """
        if not self.is_on:
            return
        self._gpu_driver = driver_version() if _core.may_use_gpu(device) else None
        self._open_files, self._sleeps = list(open_files), sleeps
        self._add(_core.harden_finish(self._readiness(recording=recording)))
        self._refuse_lacks()

    def end_recording(self) -> None:
        """Refuses what only recording graphs needed. Any thread.

        Errors: HardeningError; the process must then end.
        """
        if not self.is_on:
            return
        ended = layers_of(_core.harden_end_recording(self._readiness(recording=True)))
        by_name = {layer.name: layer for layer in ended}
        self.layers = [by_name.get(layer.name, layer) for layer in self.layers]

    def _readiness(self, *, recording: bool) -> bytes:
        readiness = {
            "gpu_driver": self._gpu_driver,
            "recording": recording,
            "sleeps": self._sleeps,
            "open_files": self._open_files,
            "trace": self._trace,
        }
        return json.dumps(readiness).encode()

    def _start(self, **values: Any) -> bytes:
        return json.dumps({"has_gpu": self._has_gpu, **values}).encode()

    def _add(self, report: bytes) -> None:
        self.layers += layers_of(report)

    def _refuse_lacks(self) -> None:
        missing = self.missing()
        if self.mode == "strict" and missing:
            raise HardeningError(f"hardening: strict, but missing here: {'; '.join(missing)}")


def layers_of(report: bytes) -> list[Layer]:
    """The layers that a report of the core lists."""
    return [Layer(**layer) for layer in json.loads(report)["layers"]]


def confine_keeper(read: Iterable[Path], write: Iterable[Path]) -> None:
    """Confines a helper process to these places. Errors: HardeningError."""
    _core.harden_keeper(json.dumps({"read": absolute(read), "write": absolute(write)}).encode())


def confine_exporter(read: Iterable[str | Path], ports: Sequence[int]) -> None:
    """Confines a helper process that connects to these TCP ports, where Landlock knows ports.

    It can open Python, libraries and `read`, writes no file and starts no program.
    Errors: HardeningError.
    """
    reads = [*python_folders(), *library_folders(), *absolute(read)]
    _core.harden_confine(json.dumps({"read": reads, "connect": list(ports)}).encode())


def finish_exporter() -> None:
    """Its tight filter, on all threads: from here on it starts none. Errors: HardeningError."""
    _core.harden_finish_exporter()


def empty_environment() -> int:
    """Removes the variables that process.toml does not list; returns how many."""
    kept = _core.kept_variables()
    removed = [
        name for name in os.environ if not any(fnmatchcase(name, pattern) for pattern in kept)
    ]
    for name in removed:
        del os.environ[name]
    # Without it, glibc looks for a new time zone file again and again.
    os.environ.setdefault("TZ", ":/etc/localtime")
    # The driver's own cache below the home folder is out of reach; ingle has its own.
    os.environ.setdefault("CUDA_CACHE_DISABLE", "1")
    return len(removed)


def python_folders() -> list[str]:
    """Where this interpreter and its packages are."""
    paths = sysconfig.get_paths()
    own = str(Path(__file__).resolve().parent)
    # Packages of the user alone, of PYTHONPATH, and where NVIDIA's libraries may be. The first one
    # is the program's folder or the working directory, where there may be anything.
    first = 0 if sys.flags.safe_path else 1
    packages = {path for path in sys.path[first:] if os.path.isdir(path)}
    fixed = {sys.prefix, sys.base_prefix, paths["stdlib"], paths["purelib"], paths["platlib"], own}
    return sorted(fixed | packages)


def library_folders() -> list[str]:
    """Folders of LD_LIBRARY_PATH, where an operator may have put NVIDIA's libraries."""
    return absolute(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))


def absolute(paths: Iterable[str | Path]) -> list[str]:
    """The paths as the kernel will see them, whatever becomes of the working directory."""
    return [str(Path(path).absolute()) for path in paths]


def model_places(path: Path) -> list[Path]:
    """A model's folder or file, and what links in it lead to, as in a Hugging Face cache.

    What other links lead to stays out of reach; the engine names them.
    """
    places = [path, Path(os.path.realpath(path))]
    # The engine reports a folder that cannot be read.
    for folder, folders, names in os.walk(path):
        if Path(folder) != path:
            folders.clear()  # Folders of a model have none themselves.
        links = (os.path.join(folder, name) for name in names)
        places += [
            Path(os.path.realpath(link))
            for link in links
            if os.path.islink(link) and _core.may_follow(folder, link)
        ]
    return places


def driver_version() -> int:
    """The major version of NVIDIA's driver; 0 if it is unknown."""
    try:
        return int(Path("/sys/module/nvidia/version").read_text().split(".")[0])
    except (OSError, ValueError):
        return 0


def warm_up() -> None:
    """Does once what Python and its libraries do late, while they still can open files."""
    for codec in ("idna", "latin-1", "utf-8", "utf-8-sig", "ascii", "punycode"):
        codecs.lookup(codec)


def wait_for_joined_threads() -> None:
    """Gives threads that were joined the interpreter, which they need once more to end.

    `join` returns a little before; the core, which asks for one thread, keeps the interpreter.
    """
    deadline = time.monotonic() + THREADS_END_WITHIN_S
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)


THREADS_END_WITHIN_S = 1.0
