"""Hostile files: an exit code that says what is wrong and a short message, whatever they hold.

``python -m pytest -m long tests/fuzz`` runs 20,000 cases, or as many as COSTREAM_FUZZ_CASES says,
from the seed COSTREAM_FUZZ_SEED on. A failure names the category and the seed of each case.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from kit.hostile import CATEGORIES, Case, Hostile

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks with limits")
CASES = int(os.environ.get("COSTREAM_FUZZ_CASES", "20000"))
SEED = int(os.environ.get("COSTREAM_FUZZ_SEED", "1000"))
TOGETHER = 25  # cases in one process


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """Return the maker of cases."""
    hostile = Hostile(tmp_path_factory.mktemp("hostile"))
    yield hostile
    hostile.close()


def check(made: Hostile, category: str, first: int, count: int) -> None:
    """Run cases; the message of a failure begins with the number that failed."""
    failed = {}
    for begin in range(first, first + count, TOGETHER):
        seeds = range(begin, min(begin + TOGETHER, first + count))
        whys = made.failures([made.case(category, seed) for seed in seeds])
        failed |= {begin + place: why for place, why in whys.items()}
    assert not failed, f"{len(failed)} of {count} {category}"


@pytest.mark.parametrize("category", CATEGORIES)
def test_sample(category: str, made: Hostile) -> None:
    check(made, category, 0, 3)


def test_failures_are_found(made: Hostile) -> None:
    """Of cases in one process: one that ends it, and one that writes what nothing must write."""
    ends = Case({"x.py": b"import os; os.abort()"}, ("--code", "x.py", "models", "list"))
    colours = Case({"x.py": b"print('\\x1b[31m')"}, ("--code", "x.py", "models", "list"))
    sound = Case({}, ("models", "list"))
    found = made.failures([sound, colours, sound, ends, sound])
    assert sorted(found) == [1, 3]
    assert "a control character" in found[1]
    assert "exit -6" in found[3]


@pytest.mark.long
@pytest.mark.parametrize("category", CATEGORIES)
def test_many(category: str, made: Hostile) -> None:
    check(made, category, SEED, CASES // len(CATEGORIES))
