"""Control groups for tests: a server that may take only so much memory."""

import contextlib
import re
import uuid
from pathlib import Path

from server.worker import Worker

LIMITS = ("memory.max", "memory.limit_in_bytes")
USED = ("memory.current", "memory.usage_in_bytes")
KILLS = ("memory.events.local", "memory.events", "memory.oom_control")


class MemoryGroup:
    """A control group below this process's own, of version 1 or 2."""

    def __init__(self, folder):
        self.folder = folder

    def _file(self, names):
        return next(self.folder / name for name in names if (self.folder / name).exists())

    def limit(self, num_bytes):
        self._file(LIMITS).write_text(str(num_bytes))

    def used(self):
        """Bytes in use, less what the kernel can drop."""
        stat = (self.folder / "memory.stat").read_text()
        droppable = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.M)
        return int(self._file(USED).read_text()) - int(droppable[1])

    def kills(self):
        """How many of its processes the kernel has killed for want of memory."""
        found = re.search(r"^oom_kill (\d+)$", self._file(KILLS).read_text(), re.M)
        return int(found[1])


class LimitedWorker(Worker):
    """A server that starts inside of a group."""

    def __init__(self, group, *arguments, **options):
        self._group = group
        super().__init__(*arguments, **options)

    def command(self, model):
        join = f'echo $$ > {self._group.folder}/cgroup.procs && exec "$@"'
        return ["sh", "-c", join, "sh", *super().command(model)]


@contextlib.contextmanager
def memory_group():
    """A new group; None where this user may not make one."""
    made = next(filter(None, map(group_in, folders())), None)
    try:
        yield made
    finally:
        if made is not None:
            remove(made.folder)


def group_in(folder):
    """A new group below this one; None if none can be made, or it could not limit memory."""
    group = MemoryGroup(folder / f"ingle-test-{uuid.uuid4().hex[:12]}")
    try:
        group.folder.mkdir()
        group._file(LIMITS)
    except (OSError, StopIteration):
        remove(group.folder)
        return None
    return group


def remove(folder):
    with contextlib.suppress(OSError):
        folder.rmdir()


def folders():
    """Where a group of memory may be made: this process's own group first, then those above it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            top = Path("/sys/fs/cgroup/memory")
        elif controllers == "" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            top = Path("/sys/fs/cgroup")
        else:
            continue
        own = top / path.strip("/")
        yield own
        yield from own.parents[: len(own.parts) - len(top.parts)]
