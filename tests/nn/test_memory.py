from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

# Page faults of a loop that frees one tensor each time round, every time a larger one.
COUNT_FAULTS = """
import resource, sys, torch
from costream.nn.fast import keep_freed_memory
torch.ones(1000)
if sys.argv[1] == "keep":
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for k in range(1, 41):
    torch.ones(100_000 * k)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    command = [sys.executable, "-c", COUNT_FAULTS, mode]
    root = Path(__file__).resolve().parents[2]
    return int(subprocess.run(command, check=True, capture_output=True, cwd=root).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_freed_tensors_are_used_again() -> None:
    assert faults("keep") < faults("leave") / 4
