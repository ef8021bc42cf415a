"""What the inputs of a batch share, and where the files of each input are."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from costream.options.options import Options
from costream.runtime.batch.folders import PRIVATE, Outcome, failure
from costream.sinks.atomic import part_path
from costream.sinks.registry import paths_for

RECORDS = f"{PRIVATE}/records"  # folder for records when "jsonl" is not an output format
COPIES = f"{PRIVATE}/fetched"  # folder for temporary copies of inputs from stores
TICK_S = 0.2  # interval at which an engine returns control and checks time limits


@dataclass(frozen=True)
class BatchJob:
    """What all inputs of a batch share. Sent to every worker; holds no arrays."""

    options: Options  # with absolute paths
    weights_sha256: str  # of the weights that every worker must load
    code: tuple[str, ...] = ()  # Python files of the user's that every worker runs first

    @property
    def folder(self) -> Path:
        """The output folder."""
        return Path(str(self.options.output))

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of the results; never empty."""
        return self.options.formats or ("jsonl",)


@dataclass(frozen=True)
class Task:
    """One input."""

    uri: str
    name: str


def too_late(task: Task, timeout_s: float) -> Outcome:
    """Return the outcome of an input that took longer than allowed."""
    return failure(task.name, f"took longer than {timeout_s:g} s")


def record_path(work: BatchJob, name: str) -> Path:
    """Return the file of an input's records, from which the tables are built."""
    folder = work.folder
    return paths_for("jsonl", folder if "jsonl" in work.formats else folder / RECORDS, name)[0]


def result_paths(work: BatchJob, name: str) -> list[Path]:
    """Return all files that an input's results may be in, including the records."""
    folder = work.folder
    asked = [path for format in work.formats for path in paths_for(format, folder, name)]
    return list(dict.fromkeys([*asked, record_path(work, name)]))


def discard(work: BatchJob, name: str) -> None:
    """Remove an input's results, finished or not, and its copy."""
    for path in result_paths(work, name):
        for file in (path, part_path(path)):
            with suppress(OSError):
                file.unlink()
    shutil.rmtree(copy_folder(work, name), ignore_errors=True)


def remove_copies(work: BatchJob) -> None:
    """Remove copies of inputs from stores that killed workers left behind."""
    shutil.rmtree(work.folder / COPIES, ignore_errors=True)


def copy_folder(work: BatchJob, name: str) -> Path:
    """Return the folder for the copy of an input from a store."""
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]  # a name may be long or contain "/"
    return work.folder / COPIES / digest
