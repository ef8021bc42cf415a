"""Number of worker processes that fit this machine's cores and memory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# Measured use of a worker with a small model, plus room for a large frame in flight.
WORKER_BYTES = 1 << 30


def auto_jobs(threads: int = 1) -> int:
    """Return the number of workers that cores and free memory allow, at least one."""
    memory = available_bytes()
    by_memory = cores() if memory is None else memory // WORKER_BYTES
    return max(1, min(cores() // threads, by_memory))


def cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_bytes() -> int | None:
    """Return the bytes of available memory, None where the system does not report it."""
    found = [_meminfo(), _cgroup()]
    return min((n for n in found if n is not None), default=None)


def _meminfo() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def _cgroup() -> int | None:
    """Return the bytes left below a container's limit (control groups, version 2)."""
    folder = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        limit = (folder / "memory.max").read_text("ascii").strip()
        used = int((folder / "memory.current").read_text("ascii"))
        return None if limit == "max" else max(0, int(limit) - used)
    return None
