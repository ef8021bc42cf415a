"""The plan of a batch: which inputs to run, and whether the output folder may be used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costream.core.errors import UsageError
from costream.core.records import SCHEMA, plain
from costream.core.version import __version__
from costream.models.identity import WeightsIdentity
from costream.runtime.batch.folders import PRIVATE, Outcome, failure
from costream.runtime.batch.inputs import Input
from costream.runtime.batch.job import BatchJob, Task, result_paths
from costream.runtime.batch.journal import MARK, BatchJournal, JournalEntry
from costream.runtime.batch.stores import Fingerprint, fingerprint
from costream.runtime.batch.tables import TABLES
from costream.sinks.atomic import part_path


@dataclass
class BatchPlan:
    """The inputs of a batch, grouped by what is to be done with them."""

    inputs: list[Input]
    tasks: list[Task] = field(default_factory=list)  # largest first
    uris: dict[str, str] = field(default_factory=dict)  # of the tasks, by name
    prints: dict[str, Fingerprint] = field(default_factory=dict)  # of the tasks, by name
    settled: list[JournalEntry] = field(default_factory=list)  # refused or unreadable
    kept: int = 0  # inputs whose results exist, complete and up to date


def make_plan(
    inputs: list[Input], journal: BatchJournal, output: Path, *, content: bool
) -> BatchPlan:
    """Return a plan, from a comparison of the inputs with the journal."""
    plan = BatchPlan(inputs)
    for item in inputs:
        name, refusal = item.name, item.refusal
        if refusal is not None:
            outcome = Outcome(name, refusal.status, refusal.reason, refusal.exit)
            plan.settled.append(JournalEntry(outcome))
            continue
        try:
            current = fingerprint(item.uri, content=content)
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
            plan.settled.append(JournalEntry(failure(name, reason or str(error))))
            continue
        if _is_kept(journal.entries.get(name), current, output):
            plan.kept += 1
        else:
            plan.uris[name], plan.prints[name] = item.uri, current
            plan.tasks.append(Task(item.uri, name))
    plan.tasks.sort(key=lambda task: (-plan.prints[task.name].size, task.name))
    return plan


def check_folder(
    journal: BatchJournal,
    mark: dict[str, Any],
    inputs: Iterable[Input],
    work: BatchJob,
    *,
    keep: bool,
) -> None:
    """Raise UsageError when the folder holds results of another command.

    ``keep``: results of this command are allowed.
    """
    old = journal.mark()
    if old is None:
        _check_foreign(inputs, work)
    elif journal.entries:
        if not keep:
            raise UsageError("already holds results", where=journal.folder, hint="use --overwrite")
        changed = differences(old, mark)
        if changed:
            raise UsageError(
                f"was made by another command ({'; '.join(changed)})",
                where=journal.folder,
                hint="name another folder, or start over with --overwrite",
            )


def _check_foreign(inputs: Iterable[Input], work: BatchJob) -> None:
    """Raise UsageError when a result would replace a file that no batch made."""
    paths = [work.folder / table for table in TABLES]
    for item in inputs:
        paths += result_paths(work, item.name)
    for path in paths:
        if path.exists():
            raise UsageError(
                "exists already, and was not made by a batch", where=path, hint="use --overwrite"
            )


def remove_results(output: Path, entries: Iterable[JournalEntry]) -> None:
    """Remove the files of earlier results, so that none from another command remains."""
    for entry in entries:
        for name in entry.outcome.files:
            path = Path(os.path.normpath(output / name))
            if output in path.parents and path != output / PRIVATE / MARK:
                path.unlink(missing_ok=True)
                part_path(path).unlink(missing_ok=True)


def _is_kept(entry: JournalEntry | None, current: Fingerprint, output: Path) -> bool:
    """Return whether an input is settled and unchanged, and its results are complete."""
    if entry is None or entry.fingerprint != current:
        return False
    if entry.outcome.status not in ("done", "skipped"):
        return False
    try:
        files = entry.outcome.files.items()
        return all((output / name).stat().st_size == size for name, size in files)
    except OSError:
        return False


BATCH_SCHEMA = "costream-batch/1"


def identity(
    work: BatchJob, weights: WeightsIdentity, root: str, *, content: bool
) -> dict[str, Any]:
    """Return the identity that marks a folder of results.

    ``root``: the input folder that is mirrored; ``content``: fingerprints use content hashes.
    """
    options = work.options
    return {
        "schema": BATCH_SCHEMA,
        "records": SCHEMA,
        "version": __version__,
        "root": root,
        "weights_sha256": weights.weights_sha256,
        "card_sha256": weights.card_sha256,
        "formats": list(work.formats),
        "timings": options.timings,
        "hash": content,
        "options": {name: plain(value) for name, value in options.identity.items()},
    }


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a short description of each difference between two identities."""
    flat_old, flat_new = _flat(old), _flat(new)
    return [
        f"{key} {_short(flat_old.get(key))}, now {_short(flat_new.get(key))}"
        for key in dict.fromkeys([*flat_new, *flat_old])
        if flat_old.get(key) != flat_new.get(key)
    ]


def _flat(mark: dict[str, Any]) -> dict[str, Any]:
    outer = dict(mark)
    options = outer.pop("options", None)
    return {**outer, **(options if isinstance(options, dict) else {})}


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, str) and len(value) == 64:  # a checksum
        return value[:12]
    return "none" if value is None else str(value)
