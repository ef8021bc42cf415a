"""The command line that the recipes of shipped weights share: ``python -m costream.training.X``."""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from costream.errors import CostreamError, UsageError


def parser(name: str, packs: str, steps: int) -> argparse.ArgumentParser:
    """Give the options of the recipe ``name``.

    ``packs`` says what is in the folder of packs, ``steps`` how long it learns.
    """
    options = argparse.ArgumentParser(prog=f"python -m costream.training.{name}")
    options.add_argument("--packs", type=Path, required=True, help=packs)
    options.add_argument("--output", type=Path, default=Path("weights"))
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--steps", type=int, default=steps)
    return options


def carry_out(make: Callable[[], Sequence[Path]], threads: int) -> int:
    """Run a recipe on so many threads and print what it wrote; gives the exit code."""
    torch.set_num_threads(threads)
    try:
        written = make()
    except CostreamError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(*written, sep="\n")
    return 0


@contextmanager
def teacher_file(pack: Path, name: str) -> Iterator[Path]:
    """Give a file of the pack ``teachers.tar`` for a while. UsageError when that is not there."""
    if not pack.is_file():
        raise UsageError("the teacher is not there", where=pack)
    with tarfile.open(pack) as archive, tempfile.TemporaryDirectory() as place:
        archive.extract(f"teachers/{name}", place, filter="data")
        yield Path(place) / "teachers" / name
