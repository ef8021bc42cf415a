"""How many workers this machine has room for."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# What a worker with a small model was seen to use, with room for a large picture in flight.
WORKER_BYTES = 1 << 30


def auto_jobs(threads: int = 1) -> int:
    """Give as many workers as cores and free memory allow, at least one."""
    memory = available_bytes()
    by_memory = cores() if memory is None else memory // WORKER_BYTES
    return max(1, min(cores() // threads, by_memory))


def cores() -> int:
    """Give the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_bytes() -> int | None:
    """Give the memory that is free for use here, None where the system does not tell."""
    found = [_meminfo(), _cgroup()]
    return min((n for n in found if n is not None), default=None)


def _meminfo() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def _cgroup() -> int | None:
    """Give what a container's limit leaves (control groups, version 2)."""
    folder = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        limit = (folder / "memory.max").read_text("ascii").strip()
        used = int((folder / "memory.current").read_text("ascii"))
        return None if limit == "max" else max(0, int(limit) - used)
    return None
