"""The journal of a batch, from which it is resumed: ``OUT/.costream``.

``batch.json`` identifies the command that made the folder. ``journal.jsonl`` has a line for every
settled input: in order of completion while a batch runs; when it ends, sorted by name and once
each, so that it does not depend on how often the batch was interrupted. ``lock`` is held while a
batch runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from costream.core.errors import OutputError, UsageError
from costream.core.locks import append_own, try_lock
from costream.runtime.batch.folders import PRIVATE, Outcome
from costream.runtime.batch.stores import Fingerprint
from costream.sinks.atomic import AtomicFile

MARK = "batch.json"
LOCK_S = 5.0  # workers of a killed batch exit within this time


@dataclass(frozen=True)
class JournalEntry:
    """One line: an outcome and the fingerprint of the input at that time."""

    outcome: Outcome
    fingerprint: Fingerprint | None = None  # None: the input could not be read

    def to_json(self) -> str:
        """Return the line. It is pure ASCII, so names that are not UTF-8 are preserved."""
        outcome = {k: v for k, v in asdict(self.outcome).items() if k != "fatal"}
        print_ = None if self.fingerprint is None else asdict(self.fingerprint)
        return json.dumps({**outcome, "input": print_}) + "\n"

    @classmethod
    def from_json(cls, line: str) -> JournalEntry | None:
        """Parse a line; None when it is truncated or invalid."""
        try:
            row = json.loads(line)
            stamp = row.pop("input")
            return cls(Outcome(**row), None if stamp is None else Fingerprint(**stamp))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass
class BatchJournal:
    """The journal of one output folder.

    ``mark`` and ``read`` change no file. To write: ``lock``, ``read``, ``open``, ``add`` and
    finally ``close``.
    """

    folder: Path
    entries: dict[str, JournalEntry] = field(default_factory=dict)  # by name
    _file: IO[str] | None = None
    _lock: IO[str] | None = None

    @property
    def _path(self) -> Path:
        return self.folder / PRIVATE / "journal.jsonl"

    def mark(self) -> dict[str, Any] | None:
        """Return the identity of the batch that made this folder; None when none did."""
        path = self.folder / PRIVATE / MARK
        try:
            mark = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageError(
                f"cannot be read ({error})", where=path, hint="--overwrite starts over"
            ) from error
        return mark if isinstance(mark, dict) else {}

    def read(self) -> None:
        """Read the entries; truncated lines are ignored."""
        self.entries.clear()
        try:
            lines = self._path.read_text("utf-8", "replace").split("\n")
        except FileNotFoundError:
            return
        for entry in map(JournalEntry.from_json, lines):
            if entry is not None:
                self.entries[entry.outcome.name] = entry

    def lock(self) -> None:
        """Lock the folder. UsageError when another batch is writing to it."""
        try:
            (self.folder / PRIVATE).mkdir(parents=True, exist_ok=True)
            self._lock = append_own(self.folder / PRIVATE / "lock")
        except OSError as error:
            raise UsageError(f"cannot be written ({error.strerror})", where=self.folder) from error
        until_s = time.monotonic() + LOCK_S
        while not try_lock(self._lock):
            if time.monotonic() > until_s:
                raise UsageError("another batch is writing to this folder", where=self.folder)
            time.sleep(0.05)

    @property
    def descriptor(self) -> int | None:
        """The file descriptor of the lock, for workers to hold; None when not locked."""
        return None if self._lock is None else self._lock.fileno()

    def open(self, mark: dict[str, Any]) -> None:
        """Mark the folder as made by this batch, and open the journal for writing."""
        self._write(self.folder / PRIVATE / MARK, [json.dumps(mark, indent=1) + "\n"])
        self._rewrite()  # the next line must not continue a truncated one
        self._file = append_own(self._path)

    def add(self, entry: JournalEntry) -> None:
        """Append an entry and flush it. OutputError when it cannot be written."""
        self.entries[entry.outcome.name] = entry
        if self._file is None:
            return
        try:
            self._file.write(entry.to_json())
            self._file.flush()
        except OSError as error:
            raise OutputError(f"cannot write ({error.strerror})", where=self._path) from error

    def close(self) -> None:
        """Sort the journal and unlock the folder."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._rewrite()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _rewrite(self) -> None:
        self._write(self._path, (self.entries[name].to_json() for name in sorted(self.entries)))

    def _write(self, path: Path, lines: Iterable[str]) -> None:
        file = AtomicFile(path, overwrite=True)
        file.open()
        for line in lines:
            file.write(line)
        file.finish()
