"""What a batch has to do: which inputs are new, and whether the output folder is the right one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costream.errors import ExitCode, UsageError
from costream.runtime.batch.fingerprint import Fingerprint, fingerprint
from costream.runtime.batch.folders import PRIVATE
from costream.runtime.batch.identity import differences
from costream.runtime.batch.inputs import Input
from costream.runtime.batch.journal import MARK, Entry, Journal
from costream.runtime.batch.outcome import Outcome
from costream.runtime.batch.work import Task, Work, result_paths
from costream.sinks.atomic import part_of
from costream.sinks.merged import TABLES


@dataclass
class Plan:
    """The inputs of a batch, sorted by what is to be done with them."""

    inputs: list[Input]
    tasks: list[Task] = field(default_factory=list)  # longest first, as far as sizes tell
    uris: dict[str, str] = field(default_factory=dict)  # of the tasks, by name
    prints: dict[str, Fingerprint] = field(default_factory=dict)  # the same
    settled: list[Entry] = field(default_factory=list)  # nothing to run: refused or unreadable
    kept: int = 0  # results that are there, complete and equal


def make_plan(inputs: list[Input], journal: Journal, output: Path, *, content: bool) -> Plan:
    """Compare the inputs with the journal."""
    plan = Plan(inputs)
    for item in inputs:
        if item.refusal is not None:
            told = item.refusal
            outcome = Outcome(item.name, told.status, told.reason, told.exit)
            plan.settled.append(Entry(outcome))
            continue
        try:
            found = fingerprint(item.uri, content=content)
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
            code = int(ExitCode.INPUT)
            plan.settled.append(Entry(Outcome(item.name, "failed", reason or str(error), code)))
            continue
        if _is_kept(journal.entries.get(item.name), found, output):
            plan.kept += 1
        else:
            plan.uris[item.name], plan.prints[item.name] = item.uri, found
            plan.tasks.append(Task(item.uri, item.name))
    plan.tasks.sort(key=lambda task: (-plan.prints[task.name].size, task.name))
    return plan


def check_folder(
    journal: Journal, mark: dict[str, Any], inputs: Iterable[Input], work: Work, *, keep: bool
) -> None:
    """Raise UsageError when the folder holds results that this command did not make.

    ``keep``: those that it made may stay.
    """
    old = journal.mark()
    if old is None:
        _check_foreign(inputs, work)
    elif journal.entries:
        if not keep:
            raise UsageError("holds results already", where=journal.folder, hint="use --overwrite")
        changed = differences(old, mark)
        if changed:
            raise UsageError(
                f"was made by another command ({'; '.join(changed)})",
                where=journal.folder,
                hint="name another folder, or do all of it again with --overwrite",
            )


def _check_foreign(inputs: Iterable[Input], work: Work) -> None:
    """Raise UsageError when a result would replace a file that no batch has made."""
    paths = [Path(work.output) / table for table in TABLES]
    for item in inputs:
        paths += result_paths(work, item.name)
    for path in paths:
        if path.exists():
            raise UsageError(
                "exists already, and no batch made it", where=path, hint="use --overwrite"
            )


def remove_results(output: Path, entries: Iterable[Entry]) -> None:
    """Remove the files of earlier results, so that none outlives the command that made it."""
    for entry in entries:
        for name in entry.outcome.files:
            path = Path(os.path.normpath(output / name))
            if output in path.parents and path != output / PRIVATE / MARK:
                path.unlink(missing_ok=True)
                part_of(path).unlink(missing_ok=True)


def _is_kept(entry: Entry | None, found: Fingerprint, output: Path) -> bool:
    """Say whether an input is settled, still the same, and its results are whole."""
    if entry is None or entry.fingerprint != found:
        return False
    if entry.outcome.status not in ("done", "skipped"):
        return False
    for name, size in entry.outcome.files.items():
        try:
            if (output / name).stat().st_size != size:
                return False
        except OSError:
            return False
    return True
