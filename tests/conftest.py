"""What every test relies on: one thread, and helper modules that lie beside this file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

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
    *("tests/cli/test_watch.py", "tests/cli/test_batch_ray.py", "tests/cli/test_batch.py"),
    *("tests/cli/", "tests/training/", "tests/recipes/", "tests/report/", "tests/runtime/"),
    "tests/samples/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((k for k, path in enumerate(LONG) if item.nodeid.startswith(path)), len(LONG))

    items.sort(key=place)
