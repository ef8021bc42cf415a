"""Skeleton source: joints of persons over time, from all supported formats."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from costream.core.errors import SourceError
from costream.core.records import Fault, Item, SourceInfo
from costream.sources.base import SAME_TIME_S, SourceOptions, before_start, source
from costream.sources.features.feature_arrays import (
    split_video,
)
from costream.sources.file import HEAD_BYTES, FileSource, file_name
from costream.sources.media.decode_errors import DecodeErrors
from costream.sources.media.input_file import check_file
from costream.sources.skeletons.columns import AXES, parse_columns
from costream.sources.skeletons.missing_joints import Placeholders
from costream.sources.skeletons.person_slots import Slots
from costream.sources.skeletons.skeleton_format import FORMATS, SkeletonInput, find_format
from costream.sources.skeletons.skeleton_recording import (
    Event,
    SkeletonRecording,
    SkippedData,
    TruncatedRecording,
)
from costream.sources.skeletons.take import Take, read_take
from costream.sources.skeletons.upright import UprightRemark, turning_option, upright

_LATE = "frame(s) out of time order, left out"
_STRAY = "joint(s) far from their person, treated as missing"


@source("skeleton", kind="skeleton", order=1)
class SkeletonSource(FileSource):
    """Skeletons of a recording in time order.

    Persons keep their slots while they are visible: by their ids if the format has them, else by
    nearest position. There are ``options.persons`` slots; persons without a free slot are left
    out. In a frame without persons all joints have score 0.

    Frames are numbered from 0 at the start of the recording. Rows and frames that cannot be read
    are left out and reported; ``errors`` counts them.
    """

    _opened: Any = None
    array_recording: SkeletonRecording | None = None
    _format: str | None = None

    @staticmethod
    def sniff(head: bytes, path: str | None, options: SourceOptions) -> bool:
        """Return whether the data are skeletons; arrays are if the options name a layout."""
        return find_format(SkeletonInput(head, path, options)) is not None

    @staticmethod
    def names(head: bytes, path: str) -> list[str]:
        """Return the names of the recordings in a file (FILE#NAME)."""
        source = SkeletonInput(head, path, SourceOptions())
        formats = (FORMATS.get(name).info for name in FORMATS)
        found = (info["names"](source) for info in formats if "names" in info)
        return next(filter(None, found), [])

    def open(self) -> SourceInfo:
        """Open the recording and read its beginning.

        Raises SourceError without skeletons; UsageError if a needed option is missing.
        """
        self.close()
        self._damage = DecodeErrors()
        try:
            recording = self._open()
        except SourceError:
            if self._stopped:
                raise SourceError("stopped before any data came", where=self._where) from None
            raise
        if self._file is None:
            recording = upright(recording, fixed=self._fixed)
        self.array_recording = recording
        return SourceInfo(
            name=file_name(self._uri),
            uri=self._where,
            kind="skeleton",
            duration_s=recording.duration_s,
            rate_hz=recording.rate_hz,
            layout=recording.layout.name,
            joints=recording.layout,
            axes=recording.axes,
            format=self._format,
            assumed=recording.assumed,
        )

    def items(self) -> Iterator[Item]:
        """Yield SkeletonFrame items, Faults after errors, a fatal one if the rest is lost."""
        recording, options = self.array_recording, self._options
        if recording is None:
            return
        slots = Slots(max(1, options.persons))
        end_s = float("inf") if options.end_s is None else options.end_s - SAME_TIME_S
        fatal: str | None = None
        unset = Placeholders(live=self._file is not None)
        remark = UprightRemark(recording.layout, turning_option(recording, fixed=self._fixed))
        last_s, i = float("-inf"), 0
        for event in self._events(recording):
            if isinstance(event, TruncatedRecording):
                fatal = event.message
                break
            if isinstance(event, SkippedData) or event.time_s <= last_s:
                what = event.what if isinstance(event, SkippedData) else _LATE
                self._damage.add(what, max(last_s, 0.0))
                continue
            last_s = event.time_s
            if last_s >= end_s:
                fatal = before_start(options, last_s) if i == 0 else None
                break
            yield from unset.add(event)
            if self._file is not None:
                yield from remark.add(event)
            for _ in range(sum(body.strays for body in event.bodies)):
                self._damage.add(_STRAY, last_s)
            frame = slots.frame(i, event, recording.layout, recording.axes)
            i += 1
            if last_s < options.start_s - SAME_TIME_S:
                continue
            yield from self._damage.report(last_s, True)
            yield frame
        yield from self._damage.flush()
        yield from unset.finish(last_s)
        if fatal is not None and not self._stopped:
            yield Fault(max(last_s, 0.0), fatal, fatal=True)

    def close(self) -> None:
        """Close the file. Frames already yielded stay usable."""
        self.array_recording = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _events(self, recording: SkeletonRecording) -> Iterator[Event]:
        """Yield the events of the recording until it ends, is stopped or closed."""
        while not self._stopped and self.array_recording is not None:
            try:
                event = next(recording.events, None)
            except SourceError as error:
                event = TruncatedRecording(str(error))
            # An end caused by stopping must not look like a truncated file.
            if event is None or self._stopped:
                return
            yield event

    @property
    def _fixed(self) -> bool:
        """Whether the options define the axes."""
        columns = parse_columns(self._options.columns) if self._options.columns else None
        return columns is not None and any(columns.get(axis) for axis in AXES)

    def _open(self) -> SkeletonRecording:
        """Return the recording, read by the first format that recognises it."""
        source = self._input()
        found = find_format(source)
        if found is None and source.path is None:  # a pipe whose first line is a short one
            found = FORMATS.get("table")
        if found is None:
            raise SourceError("unknown skeleton format", where=self._where)
        assert found.target is not None
        self._format = found.name
        recording = found.target(source)
        if isinstance(recording, Take):
            return read_take(recording, source.layout, source.columns, self._where)
        return recording

    def _input(self) -> SkeletonInput:
        options, where = self._options, self._where
        if self._file is not None:
            file, head = self._open_file("")
            return SkeletonInput(head, None, options, where=where, file=file)
        path, name = split_video(self._uri)
        if os.path.isdir(path):
            return SkeletonInput(b"", path, options, where=where)
        file, head = self._open_file(path)
        return SkeletonInput(head, path, options, name=name, where=where, file=file)

    def _open_file(self, path: str) -> tuple[Any, bytes]:
        """Return the file to read from, and its first bytes."""
        file: Any = self._file
        if file is None:
            check_file(path)
            file = self._opened = open(path, "rb")  # noqa: SIM115  (closed by close)
        if self._head:
            return file, self._head
        head = file.read(HEAD_BYTES)
        file.seek(0)
        return file, head
