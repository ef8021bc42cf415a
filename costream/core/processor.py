"""The name of this machine's processor."""

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


def _cpu_field(names: str) -> str:
    """Return the first value of a field of the processor's description, "" if there is none."""
    try:
        text = CPU_INFO.read_text()
    except OSError:  # not Linux
        return ""
    found = re.search(rf"^(?:{names})\s*:(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""
