"""What every test relies on: one thread, and helper modules that lie beside this file."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

# Steps are over before a second thread wakes up. Set before torch is loaded; children inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime would write into homes
sys.path.insert(0, str(Path(__file__).parent))

# How long an example takes says nothing on a machine that does other things too. The examples are
# the same each time; ``--hypothesis-profile explore`` draws others.
settings.register_profile("costream", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile("costream")


@pytest.fixture(autouse=True)
def _subnormal_numbers() -> Iterator[None]:
    """Runs inside a test flush them to zero, for speed; the next test has them again."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


# Files that take long, with few tests. Side by side with others they had better begin first.
LONG = (
    *("tests/cli/test_watch.py", "tests/cli/test_ray.py", "tests/cli/test_batch.py"),
    *("tests/cli/", "tests/training/", "tests/recipes/", "tests/report/", "tests/runtime/"),
    "tests/samples/",
)


# Real servers, brokers, browsers, terminals, processes that are waited for, threads and clocks: a
# machine that is busy may starve them. Such a test runs once more; the last line counts these.
REAL = ("kit.broker", "kit.browser", "kit.fileserver", "kit.rtsp", "kit.tcp", "kit.virtual")
WAITING = ("anyio", "on_terminal", "start", "threading", "time", "wait_until")


def _waits(module: ModuleType) -> bool:
    names = vars(module)
    return any(name in names for name in WAITING) or any(
        str(getattr(value, "__module__", "")).startswith(REAL) for value in names.values()
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((k for k, path in enumerate(LONG) if item.nodeid.startswith(path)), len(LONG))

    items.sort(key=place)
    waiting = functools.cache(_waits)
    for item in items:
        in_terminal = {"in_terminal", "tmux"} & set(getattr(item, "fixturenames", ()))
        if in_terminal or waiting(item.getparent(pytest.Module).obj):
            item.add_marker(pytest.mark.flaky(reruns=1))
