"""Skeleton source: joints of persons over time, from all supported formats."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from costream.core.errors import SourceError, display_name
from costream.core.layouts import find_layout
from costream.core.records import Fault, Item, SkeletonFrame, SourceInfo
from costream.sources.base import SAME_TIME_S, SourceOptions, before_start, source
from costream.sources.features.feature_arrays import (
    NUMPY_MAGIC,
    ZIP_MAGIC,
    clip_count,
    has_arrays,
    is_pickle,
    load_arrays,
    split_video,
)
from costream.sources.file import HEAD_BYTES, FileSource, file_name, first_of, read_all
from costream.sources.media.decode_errors import DecodeErrors
from costream.sources.media.input_file import check_file
from costream.sources.skeletons.bvh import read_bvh
from costream.sources.skeletons.c3d import read_c3d
from costream.sources.skeletons.columns import AXES, parse_columns
from costream.sources.skeletons.deeplabcut import read_deeplabcut
from costream.sources.skeletons.frame_files import frame_files
from costream.sources.skeletons.freemocap import is_freemocap, read_freemocap, table_take
from costream.sources.skeletons.hdf5 import HDF5_MAGIC, read_hdf5
from costream.sources.skeletons.missing_joints import Placeholders
from costream.sources.skeletons.ntu import read_ntu
from costream.sources.skeletons.openpose import read_frame_files
from costream.sources.skeletons.opensim import read_mot, read_trc
from costream.sources.skeletons.person_slots import Slots
from costream.sources.skeletons.pose_json import read_pose_json, read_pose_list
from costream.sources.skeletons.skeleton_arrays import pyskl_recordings, read_annotation, read_array
from costream.sources.skeletons.skeleton_recording import (
    Event,
    PersonFrame,
    SkeletonRecording,
    SkippedData,
    TruncatedRecording,
)
from costream.sources.skeletons.table import read_table
from costream.sources.skeletons.take import Take, read_take
from costream.sources.skeletons.text_lines import Lines, text_format
from costream.sources.skeletons.upright import UprightRemark, turning_option, upright

# Texts that are read as a whole.
_TAKES: dict[str, Callable[[Iterable[str], float | None, str], Take]] = {
    "bvh": read_bvh,
    "deeplabcut": read_deeplabcut,
    "mot": read_mot,
    "trc": read_trc,
}

_LATE = "frame(s) out of time order, left out"
_STRAY = "joint(s) far away from their person, taken as missing"


@source("skeleton", kind="skeleton", order=1)
class SkeletonSource(FileSource):
    """Skeletons of a recording in time order.

    Persons keep their slots while they are seen: by their ids if the format has them, else by
    nearest position. There are ``options.persons`` slots; persons without a free one are left
    out. In a frame without persons all joints have score 0.

    Frames are numbered from 0 at the start of the recording. Rows and frames that cannot be read
    are left out and reported; ``errors`` counts them.
    """

    _opened: Any = None
    _recording: SkeletonRecording | None = None

    @staticmethod
    def sniff(head: bytes, path: str | None, options: SourceOptions) -> bool:
        """Return whether these are skeletons; of arrays, a layout in the options says so."""
        if path is not None and os.path.isdir(path):
            return frame_files(path) is not None
        if _is_binary(head, path):
            return True
        if not has_arrays(head, path):
            return text_format(head, path or "") is not None
        if path is not None and is_pickle(head, path):
            return bool(pyskl_recordings(path))
        return options.layout is not None or is_freemocap(path)

    @staticmethod
    def names(head: bytes, path: str) -> list[str]:
        """Return the names of the recordings in a pickle, and the numbers of clips in an array."""
        if is_pickle(head, path):
            return list(pyskl_recordings(path))
        return list(map(str, range(clip_count(path)))) if head.startswith(NUMPY_MAGIC) else []

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
        self._recording = recording
        return SourceInfo(
            name=file_name(self._uri),
            uri=self._where,
            kind="skeleton",
            duration_s=recording.duration_s,
            rate_hz=recording.rate_hz,
            layout=recording.layout.name,
            joints=recording.layout,
            axes=recording.axes,
            assumed=recording.assumed,
        )

    def items(self) -> Iterator[Item]:
        """Yield SkeletonFrame items, Faults after errors, a fatal one if the rest is lost."""
        recording, options = self._recording, self._options
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
            frame = _frame(i, event, slots, recording)
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
        self._recording = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _events(self, recording: SkeletonRecording) -> Iterator[Event]:
        """Yield the events of the recording until it ends, is stopped or closed."""
        while not self._stopped and self._recording is not None:
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
        """Whether the options say what the axes are."""
        columns = parse_columns(self._options.columns) if self._options.columns else None
        return columns is not None and any(columns.get(axis) for axis in AXES)

    def _open(self) -> SkeletonRecording:
        options, where = self._options, self._where
        layout = find_layout(options.layout) if options.layout else None
        columns = parse_columns(options.columns) if options.columns else None
        rate_hz = options.frame_rate_hz
        path, name = (self._uri, None) if self._file is not None else split_video(self._uri)
        if self._file is None and os.path.isdir(path):
            return read_frame_files(path, layout, rate_hz, where)
        file, head = self._open_file(path)
        given = path if self._file is None else None
        if _is_binary(head, given):
            content = io.BytesIO(read_all(file)) if given is None else file
            read = read_hdf5 if head.startswith(HDF5_MAGIC) else read_c3d
            return read_take(read(content, rate_hz, where), layout, columns, where)
        if head.startswith((NUMPY_MAGIC, ZIP_MAGIC)):
            content, whole = load_arrays(path, None if self._file is None else read_all(file))
            clip = int(name) if name is not None and name.isdecimal() else 0
            array = _only(content, where)
            if layout is None and is_freemocap(given):
                return _cut(
                    read_take(read_freemocap(array, rate_hz, where), None, columns, where), whole
                )
            return _cut(read_array(array, layout, columns, rate_hz, where, clip), whole)
        format_ = text_format(head, path)
        if format_ == "json":
            text = read_all(file).decode("utf-8-sig", "replace")
            return read_pose_json(text, layout, columns, rate_hz, where, options.persons)
        if format_ in _TAKES:
            take = _TAKES[format_](Lines(file), rate_hz, where)
            return read_take(take, layout, columns, where)
        if format_ == "yolo":
            folder = os.path.dirname(where) or "."
            raise SourceError(
                "this is one frame of YOLO's keypoints",
                where=where,
                hint=f"give the folder of all frames: {folder}",
            )
        if format_ == "ntu":
            return read_ntu(Lines(file), rate_hz, where)
        if format_ == "table" or self._file is not None:
            name = path if self._file is None else None
            recording = read_table(Lines(file), layout, columns, rate_hz, where, name)
            if layout is None and is_freemocap(given) and recording.axes == 3:
                return read_take(table_take(recording), None, None, where)
            return recording
        entry = _entry(path, name)
        if "poses" in entry:
            return read_pose_list(entry["poses"], layout, columns, rate_hz, where)
        return read_annotation(entry, layout, rate_hz, where)

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


def _frame(
    i: int, moment: PersonFrame, slots: Slots, recording: SkeletonRecording
) -> SkeletonFrame:
    placed = slots.place(moment)
    count = len(recording.layout.joints)
    joints = np.zeros((len(placed), count, recording.axes), np.float32)
    scores = np.zeros((len(placed), count), np.float32)
    for slot, body in enumerate(placed):
        if body is not None:
            joints[slot], scores[slot] = body.joints, body.scores
    numbers = tuple(slots.numbers)
    return SkeletonFrame(i, moment.time_s, joints, scores, recording.layout, persons=numbers)


def _cut(recording: SkeletonRecording, whole: bool) -> SkeletonRecording:
    if whole:
        return recording
    end = TruncatedRecording("the file is cut off after this frame")
    return replace(recording, events=itertools.chain(recording.events, [end]))


def _is_binary(head: bytes, path: str | None) -> bool:
    """Return whether this is an HDF5 or C3D file; the latter is known by its name."""
    return head.startswith(HDF5_MAGIC) or (path or "").lower().endswith(".c3d")


def _only(content: Any, where: str) -> Any:
    """Return the array of a file; of an archive its only one."""
    if isinstance(content, dict):
        if len(content) != 1:
            names = ", ".join(list(content)[:4]) or "nothing"
            raise SourceError(f"it holds {names}, not one array", where=where)
        return next(iter(content.values()))
    return content


def _entry(path: str, name: str | None) -> Any:
    """Return one recording of a pickle; raises SourceError if there is none of that name."""
    found = pyskl_recordings(path)
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    with contextlib.suppress(KeyError):
        return found[name or ""]
    raise SourceError(
        f"there is no recording {name!r} in it" if name else "it holds several recordings",
        where=display_name(path),
        hint=f"it has {first_of(found, 3)}" if found else None,
    )
