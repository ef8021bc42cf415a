"""The processor of this machine: its name, and whether bfloat16 is fast on it."""

from __future__ import annotations

import platform
import re
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def processor() -> str:
    """Return the processor's model name, or its architecture where the system gives no name.

    Arm: the name of the board, or the numbers of the maker and of the core.
    """
    if name := _cpu_field("model name|Model"):
        return name
    if part := _cpu_field("CPU part"):
        return f"{platform.machine()} {_cpu_field('CPU implementer')} {part}"
    return platform.processor() or platform.machine()


def has_fast_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 faster than float32.

    True with AMX, on Arm with bf16, and on AMD with AVX-512 BF16 (from Zen 4 on, 2.2 times as
    fast); detected on Linux only. On a Xeon with AVX-512 BF16 but no AMX, products take twice as
    long as in float32 (PyTorch 2.13). Other processors emulate bfloat16, many times slower.
    """
    fast = {"amx_bf16", "bf16"}
    if _cpu_field("vendor_id") == "AuthenticAMD":
        fast.add("avx512_bf16")
    return not fast.isdisjoint(_cpu_field("flags|Features").split())


def _cpu_field(names: str) -> str:
    """Return the first value of a field of the processor's description, "" if there is none."""
    try:
        text = CPU_INFO.read_text()
    except OSError:  # not Linux
        return ""
    found = re.search(rf"^(?:{names})\s*:(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""
