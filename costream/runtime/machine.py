"""Torch set-up for single steps (at start-up, never at import), and processor properties."""

from __future__ import annotations

import platform
import re
from pathlib import Path

_CPU = Path("/proc/cpuinfo")


def prepare_torch(threads: int = 1) -> None:
    """Set the number of threads, flush denormals to zero, and keep freed memory.

    A vector-matrix product ends before a second thread wakes up: two threads made a step up to
    45x slower on a busy machine. Denormal numbers make a product 10-170x slower and carry no
    information.
    """
    import torch

    from costream.nn.memory import keep_freed_memory

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    keep_freed_memory()


def processor() -> str:
    """Return the processor's model name, or its architecture where the system gives no name."""
    named = re.search(r"^model name\s*:(.*)$", _cpu_text(), re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def has_fast_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 faster than float32.

    True with AMX, and on Arm with bf16; detected on Linux only. Others emulate it, many times
    slower; with AVX-512 BF16 alone, products take twice as long (Xeon, PyTorch 2.13).
    """
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", _cpu_text(), re.MULTILINE)
    named = set(flags[1].split()) if flags else set()
    return bool(named & {"amx_bf16", "bf16"})


def _cpu_text() -> str:
    try:
        return _CPU.read_text()
    except OSError:  # not Linux
        return ""
