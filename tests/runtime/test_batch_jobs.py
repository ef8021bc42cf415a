"""Default number of worker processes of a batch."""

from __future__ import annotations

import pytest

from costream.runtime.batch import pool


@pytest.mark.parametrize(
    ("cores", "memory", "threads", "wanted"),
    [(8, None, 1, 8), (8, 64 << 30, 2, 4), (8, 3 << 30, 1, 3), (8, 1 << 20, 1, 1), (1, None, 4, 1)],
)
def test_cores_and_memory_decide(monkeypatch, cores, memory, threads, wanted):
    monkeypatch.setattr(pool, "cores", lambda: cores)
    monkeypatch.setattr(pool, "available_bytes", lambda: memory)
    assert pool.auto_jobs(threads) == wanted


def test_this_machine():
    assert 1 <= pool.auto_jobs() <= pool.cores()
    free = pool.available_bytes()
    assert free is None or free > 1 << 20
