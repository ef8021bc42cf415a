"""Journal of a feed: JSON lines, appended by run after run and robust against crashes."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from costream.core.errors import OutputError, UsageError
from costream.core.locks import append_own, try_lock
from costream.core.records import (
    AnyRecord,
    Fault,
    Gap,
    Header,
    Record,
    Segment,
    Summary,
    dumps,
    to_json,
)
from costream.sinks.appended_file import AppendedFile
from costream.sinks.rotation import Rotation

log = logging.getLogger("costream")


SYNC_S = 3.0  # interval of flushing to disk
_PRUNE_S = 30.0  # interval of deleting old parts and clips
_LOOK_S = 1.0  # interval of checking that the file exists
_AGAIN_S = 60.0  # time until a failed rotation is tried again
_TIME = "%Y-%m-%dT%H:%M:%SZ"


class Journal:
    """Append-only ``NAME.jsonl`` in a folder, with the lines of ``JsonLines``.

    Each line is written at once and in one piece, so a killed process leaves complete lines,
    except perhaps the last one; a power failure loses a few seconds of them. An incomplete line is
    removed when the next run starts: it holds nothing usable, and would break readers that parse
    every line as JSON. Each run appends a header. ``rotation`` splits the file into parts; each
    begins with the header, and no other numbering restarts. ``options.part`` in a header is the
    time of day at which its file was started. ``pictures``: folder of the pictures of alerts, which
    are deleted together with parts and clips.

    If the disk is full, the run continues: records are dropped and counted, and an ``error``
    record has their number as soon as there is room; both are logged. A file that was deleted or
    moved away is created again, with its folder and its lock.

    ``open`` raises UsageError while another run writes to this journal, OutputError if it cannot
    be written. ``clock`` returns the time of day, seconds since 1970.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        rotation: Rotation | None = None,
        *,
        pictures: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._name, self._pictures = directory, name, pictures
        self._rotation, self._clock = rotation or Rotation(), clock
        self._file = AppendedFile(directory / f"{name}.jsonl")
        self._begun_s = 0.0  # time of day
        self._filled = False  # the file holds more than a header
        self._header: Header | None = None  # to be written first; None: already written
        self._lost = 0  # records dropped since the last successful write
        self._lost_from_s: float | None = None  # time of the first of them
        self._failure = ""  # why writing fails; "" if it works
        self._durable = True  # False after a failed flush to disk
        self._look_s = self._rotate_s = 0.0  # times of day of the next check and retry
        self._prune_s = 0.0  # time of day of the next deletion of old parts
        self._lock: IO[str] | None = None
        self._closing = threading.Event()
        self._syncing = threading.Thread(target=self._sync_often, daemon=True)

    @property
    def path(self) -> Path:
        """The current file."""
        return self._file.path

    def open(self, header: Header) -> None:
        """Lock the journal and append a header."""
        self._run = self._header = header
        try:
            self._begin(self._clock())
        except OSError as error:
            self._unlock()
            if isinstance(error, BlockingIOError):
                what, hint = "another run writes to it", "stop it, or name another folder with -o"
                raise UsageError(what, where=self.path, hint=hint) from None
            raise OutputError(f"cannot write ({error.strerror})", where=self.path) from error
        self._put(None)
        self._syncing.start()

    def write(self, record: Record) -> None:
        """Append a line."""
        self._put(record)

    def close(self, summary: Summary) -> None:
        """Append the summary, flush to disk and release the lock.

        Raises OutputError if the last records could not be written.
        """
        self._put(summary)
        self._closing.set()
        self._syncing.join()
        self._sync()
        self._prune()
        self._file.close()
        self._unlock()
        if self._lost:
            raise OutputError(self._losses(), where=self.path)

    def _take_lock(self) -> None:
        """Lock the journal, unless it is locked by this run. BlockingIOError: by another run."""
        path = self._directory / f".{self._name}.lock"
        if self._lock is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(self._lock.fileno())):
                    return
        lock = append_own(path)
        if not try_lock(lock):
            lock.close()
            raise BlockingIOError(errno.EAGAIN, "another run writes to it")
        self._unlock()
        self._lock = lock

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
        self._lock = None

    def _put(self, record: AnyRecord | None) -> None:
        """Write pending lines and a record; the record is dropped if writing fails."""
        now_s = self._clock()
        line = b"" if record is None else _line(record)
        try:
            self._prepare(now_s, len(line))
            self._file.append(self._due() + line)
        except OSError as error:
            self._report(error)
            if record is not None:
                self._lost += 1
                if self._lost == 1:
                    self._lost_from_s = _time_of(record)
            return
        if self._failure:
            log.warning("%s: writing works again; records lost: %d", self.path, self._lost)
        self._header, self._lost, self._failure = None, 0, ""
        self._filled = self._filled or record is not None

    def _prepare(self, now_s: float, length: int) -> None:
        """Open, restart or rotate the file as needed before ``length`` more bytes."""
        gone = False
        if self._file.is_open and not 0 <= self._look_s - now_s <= _LOOK_S:
            self._look_s = now_s + _LOOK_S
            gone = not self._file.is_there()
            if gone:
                self._file.close()
        if not self._file.is_open:
            self._begin(now_s)
        if gone:
            log.warning("%s: was deleted or moved away; a new file is started", self.path)
        size = self._file.size + length
        due = self._filled and self._rotation.due(self._begun_s, now_s, size)
        if due and now_s >= self._rotate_s:
            self._finish(now_s)

    def _begin(self, now_s: float) -> None:
        """Open the file, in its folder and locked; an empty one needs a header."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        first = self._file.open()
        self._filled = bool(first)
        self._begun_s = now_s
        if first:
            begun_s = _begun_s(first)
            self._begun_s = self.path.stat().st_mtime if begun_s is None else begun_s
        else:
            self._header = self._run

    def _finish(self, now_s: float) -> None:
        """Rotate: rename the file to a part and start another; if that fails, continue with it."""
        try:
            self._sync()
            self._file.close()
            self._rotation.finish(self._directory, self._name, self._begun_s)
            self._prune()
        except OSError as error:
            self._rotate_s = now_s + _AGAIN_S
            log.warning("%s: cannot be rotated (%s)", self.path, error.strerror)
        self._begin(now_s)

    def _due(self) -> bytes:
        """Return the lines to be written first: the header and the number of lost records."""
        lines = b""
        if self._header is not None:
            part = datetime.fromtimestamp(self._begun_s, timezone.utc).strftime(_TIME)
            options = {**self._header.options, "part": part}
            lines += _line(replace(self._header, options=options))
        if self._lost:
            lines += _line(Fault(self._lost_from_s, self._losses(), count=self._lost))
        return lines

    def _losses(self) -> str:
        return f"records that could not be written: {self._lost} ({self._failure})"

    def _report(self, error: OSError) -> None:
        """Log a write failure, once."""
        if not self._failure:
            self._failure = error.strerror or type(error).__name__
            log.warning("%s: cannot write (%s); records are dropped", self.path, self._failure)

    def _sync_often(self) -> None:
        """Flush to disk and delete old files, regularly. A slow disk blocks this thread only."""
        while not self._closing.wait(SYNC_S):
            self._sync()
            if not 0 <= self._prune_s - self._clock() <= _PRUNE_S:
                self._prune()

    def _prune(self) -> None:
        now_s = self._clock()
        self._prune_s = now_s + _PRUNE_S
        try:
            self._rotation.prune(self._directory, self._name, now_s, self._pictures)
        except OSError as error:
            log.warning("%s: old parts cannot be deleted (%s)", self.path, error.strerror)

    def _sync(self) -> None:
        try:
            self._file.sync()
        except OSError as error:
            if self._durable:
                log.warning("%s: cannot be flushed to disk (%s)", self.path, error.strerror)
            self._durable = False


def _line(record: AnyRecord) -> bytes:
    # A name that is not UTF-8 contains lone surrogates; as \udcXX they stay valid JSON.
    return (dumps(to_json(record)) + "\n").encode("utf-8", "backslashreplace")


def _time_of(record: AnyRecord) -> float | None:
    if isinstance(record, (Segment, Gap)):
        return record.end_s
    return getattr(record, "time_s", None)


def _begun_s(header: bytes) -> float | None:
    """Return the time of day at which a file with this first line was started, if known."""
    try:
        begun = datetime.strptime(json.loads(header)["options"]["part"], _TIME)
    except (ValueError, KeyError, TypeError):
        return None
    return begun.replace(tzinfo=timezone.utc).timestamp()
