"""What programs that run for weeks hold of memory."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from costream.runtime.memory import give_back, settle, settling
from kit.program import python


class Knot:
    """Part of a cycle of references."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def _thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


def run_on() -> None:
    """Make and drop as many objects as a watch does within minutes."""
    kept: list[list[int]] = []
    for _ in range(200_000):
        kept.append([])
        if len(kept) > 2000:
            kept.clear()


@pytest.mark.usefixtures("_thaw")
def test_cycles_are_found_while_a_program_runs() -> None:
    loaded = [[k] for k in range(300_000)]  # as PyTorch does
    gc.collect()
    settle()
    knot = weakref.ref(made := Knot())
    gc.collect(1)  # it has lived for a while
    del made
    run_on()
    assert knot() is None
    assert len(loaded) == 300_000


@pytest.mark.usefixtures("_thaw")
def test_no_cycles_are_looked_for_while_a_program_loads() -> None:
    with settling():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    with pytest.raises(KeyError), settling():
        raise KeyError
    assert gc.isenabled()


def own_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


needs_glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_info"), reason="glibc"
)
COUNT = """
import ctypes, os, sys, threading
from costream.runtime.memory import share_heap
if sys.argv[1:]:
    share_heap()
barrier = threading.Barrier(6)
def work():
    kept = bytes(10_000)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(out := libc.fdopen(os.dup(1), b"w")))
libc.fclose(ctypes.c_void_p(out))
"""


@needs_glibc
def test_threads_share_a_heap() -> None:
    counts = [python("-c", COUNT, *args).stdout.count("<heap nr=") for args in ((), ("share",))]
    assert counts[1] == 1 < counts[0]


@needs_glibc
def test_what_a_backlog_took_is_given_back() -> None:
    backlog = [bytes(4000) for _ in range(20_000)]
    del backlog[:-1]  # the last one keeps the end of the heap
    before = own_bytes()
    give_back()
    assert before - own_bytes() > 40e6
