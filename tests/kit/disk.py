"""A disk that is full, as far as this process knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def full_disk(size: int = 0) -> Iterator[None]:
    """Let no file of this process grow beyond ``size`` bytes: "File too large"."""
    resource = pytest.importorskip("resource", reason="needs POSIX resource limits")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
