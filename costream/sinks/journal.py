"""The journal of a feed: JSON lines that are appended, run after run, and survive what happens."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from costream.errors import OutputError, UsageError
from costream.records import AnyRecord, Fault, Gap, Header, Record, Segment, Summary, to_json
from costream.sinks.appending import AppendedFile
from costream.sinks.jsonl import dumps
from costream.sinks.locking import locked
from costream.sinks.rotation import Rotation

log = logging.getLogger("costream")

_SYNC_S = 3.0  # the newest records are made durable this often
_LOOK_S = 1.0  # and this often it is seen whether the file is still there
_AGAIN_S = 60.0  # until a file that could not be finished is tried again
_TIME = "%Y-%m-%dT%H:%M:%SZ"


class Journal:
    """``NAME.jsonl`` in a folder: what ``JsonLines`` writes, appended as it comes.

    Each line goes to the system at once and in one piece, so a process that is killed leaves
    whole lines, but for perhaps the very last; a machine that loses its power loses a few seconds
    of them. Half a line is cut off when the next run begins: it holds nothing that could be
    used, and stops readers who take every line for JSON. Each run appends a header. ``rotation``
    makes parts of the file; each of them begins with the header, and nothing else is numbered
    anew. ``options.part`` in a header is the time of day when its file was begun.

    A disk that is full holds nothing up: records are left out and counted, and an ``error``
    record says how many as soon as there is room; the log says both. A file that somebody has
    deleted or moved away is begun anew.

    ``open`` raises UsageError while another run writes to this journal, OutputError when there
    can be none. ``clock`` gives the time of day, seconds since 1970.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        rotation: Rotation | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._name = directory, name
        self._rotation, self._clock = rotation or Rotation(), clock
        self._file = AppendedFile(directory / f"{name}.jsonl")
        self._begun_s = 0.0  # time of day
        self._filled = False  # more than a header is in the file
        self._header: Header | None = None  # to be written before anything else; None: has been
        self._lost = 0  # records that could not be written, up to now
        self._lost_from_s: float | None = None  # the first one's time
        self._trouble = ""  # why nothing can be written
        self._durable = True  # as far as is known
        self._look_s = self._rotate_s = 0.0  # times of day from which to do so again
        self._lock: IO[str] | None = None
        self._closing = threading.Event()
        self._syncing = threading.Thread(target=self._sync_often, daemon=True)

    @property
    def path(self) -> Path:
        """The file that is written."""
        return self._file.path

    def open(self, header: Header) -> None:
        """Append a header, to a file that no other run writes to."""
        self._run = self._header = header
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = (self._directory / f".{self._name}.lock").open("a", encoding="utf-8")
            try:
                self._begin_alone(lock)
            except BaseException:
                lock.close()
                raise
        except OSError as error:
            raise OutputError(f"cannot write ({error.strerror})", where=self.path) from error
        self._lock = lock
        self._put(None)
        self._syncing.start()

    def write(self, record: Record) -> None:
        """Append a line."""
        self._put(record)

    def close(self, summary: Summary) -> None:
        """Append the summary, make all durable and let others write."""
        self._put(summary)
        if self._lost:
            log.warning("%s: records lost: %d", self.path, self._lost)
        self._closing.set()
        self._syncing.join()
        self._sync()
        self._file.close()
        if self._lock is not None:
            self._lock.close()

    def _begin_alone(self, lock: IO[str]) -> None:
        if not locked(lock):
            hint = "stop it, or name another folder with -o"
            raise UsageError("another run writes to it", where=self.path, hint=hint)
        self._begin(self._clock())

    def _put(self, record: AnyRecord | None) -> None:
        """Write what is due and a record; the record is lost when the system refuses it."""
        now_s = self._clock()
        line = b"" if record is None else _line(record)
        try:
            self._prepare(now_s, len(line))
            self._file.append(self._due() + line)
        except OSError as error:
            self._tell(error)
            if record is not None:
                self._lost += 1
                if self._lost == 1:
                    self._lost_from_s = _time_of(record)
            return
        if self._trouble:
            log.warning("%s: can be written again; records lost: %d", self.path, self._lost)
        self._header, self._lost, self._trouble = None, 0, ""
        self._filled = self._filled or record is not None

    def _prepare(self, now_s: float, length: int) -> None:
        """See to it that the right file is open for so many more bytes."""
        if self._file.is_open and not 0 <= self._look_s - now_s <= _LOOK_S:
            self._look_s = now_s + _LOOK_S
            if not self._file.is_there():
                log.warning("%s: was deleted or moved away, and is begun anew", self.path)
                self._file.close()
        if not self._file.is_open:
            self._begin(now_s)
        size = self._file.size + length
        due = self._filled and self._rotation.due(self._begun_s, now_s, size)
        if due and now_s >= self._rotate_s:
            self._finish(now_s)

    def _begin(self, now_s: float) -> None:
        """Open the file; an empty one needs a header."""
        first = self._file.open()
        self._filled = bool(first)
        self._begun_s = now_s
        if first:
            begun_s = _begun_s(first)
            self._begun_s = self.path.stat().st_mtime if begun_s is None else begun_s
        else:
            self._header = self._run

    def _finish(self, now_s: float) -> None:
        """Make the file a part and begin another; go on with it where that cannot be done."""
        try:
            self._sync()
            self._file.close()
            self._rotation.finish(self._directory, self._name, self._begun_s)
        except OSError as error:
            self._rotate_s = now_s + _AGAIN_S
            log.warning("%s: cannot be made a part (%s)", self.path, error.strerror)
        self._begin(now_s)

    def _due(self) -> bytes:
        """Give the lines that have to come first."""
        lines = b""
        if self._header is not None:
            part = datetime.fromtimestamp(self._begun_s, timezone.utc).strftime(_TIME)
            options = {**self._header.options, "part": part}
            lines += _line(replace(self._header, options=options))
        if self._lost:
            message = f"records that could not be written: {self._lost} ({self._trouble})"
            lines += _line(Fault(self._lost_from_s, message, count=self._lost))
        return lines

    def _tell(self, error: OSError) -> None:
        """Log, once, that nothing can be written."""
        if not self._trouble:
            self._trouble = error.strerror or type(error).__name__
            log.warning("%s: cannot write (%s); records are left out", self.path, self._trouble)

    def _sync_often(self) -> None:
        """Keep what is not durable short. A slow disk waits here and holds nobody up."""
        while not self._closing.wait(_SYNC_S):
            self._sync()

    def _sync(self) -> None:
        try:
            self._file.sync()
        except OSError as error:
            if self._durable:
                log.warning("%s: cannot be made durable (%s)", self.path, error.strerror)
            self._durable = False


def _line(record: AnyRecord) -> bytes:
    # A name that is not UTF-8 reaches us with lone surrogates; as \udcXX they stay valid JSON.
    return (dumps(to_json(record)) + "\n").encode("utf-8", "backslashreplace")


def _time_of(record: AnyRecord) -> float | None:
    if isinstance(record, (Segment, Gap)):
        return record.end_s
    return getattr(record, "time_s", None)


def _begun_s(header: bytes) -> float | None:
    """Give the time of day when a file with this first line was begun, None if that is unknown."""
    try:
        begun = datetime.strptime(json.loads(header)["options"]["part"], _TIME)
    except (ValueError, KeyError, TypeError):
        return None
    return begun.replace(tzinfo=timezone.utc).timestamp()
