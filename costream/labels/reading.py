"""Labelled recordings from label files of all formats, class folders and tables."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from costream.core.errors import SourceError, UsageError
from costream.core.spelling import folded, stored_path
from costream.labels.class_folders import read_classes
from costream.labels.collector import LabelCollector, LabelTrack, abbreviate, checked
from costream.labels.formats.csv_files import COLUMNS, read_table
from costream.labels.formats.label_headings import split_columns
from costream.labels.label_files import read_files, recording_name
from costream.labels.media import Media, length_s
from costream.labels.recording import Recording
from costream.sources.uris import expand

log = logging.getLogger("costream")
# A run writes its files at about the same time, and some file systems store times to 2 s.
_SAME_S = 3.0
_SAME_TIME_S = 2e-3  # rounding difference between formats with milliseconds
_FOREVER_S = 1e12
# From the most exact formats to those that round times or modify labels.
_EXACT = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".eaf", ".vtt", ".srt", ".rttm")
TracksByFile: TypeAlias = dict[Path, list[LabelTrack]]  # tracks of one recording by file


def read_recordings(
    data: Path | None,
    labels: Path | None,
    group: str | None = None,
    columns: str | None = None,
) -> list[Recording]:
    """Return the recordings that have labels, in the order of names or lines.

    Without ``labels``, ``data`` is a folder with a folder for each class, or a table with the
    columns file, start, end, label. Otherwise ``labels`` is a label file or a folder of label
    files, and ``data`` the folder or file with their recordings; None if these are not needed.
    ``labels`` may end in ``#PART``: the only subset of a data set, tier or head to read.
    ``group`` names the column of a table with groups that are never split, ``columns`` those of
    label tables: "start=HEADING,end=HEADING,label=HEADING,file=HEADING,fps=HEADING or NUMBER";
    roles of joint tables in it are ignored.

    Minor problems are logged as warnings. Raises UsageError that names all errors by file and
    line, and SourceError for a missing recording.
    """
    data = None if data is None else Path(stored_path(str(data)))
    if labels is None:
        return _data(data, group, LabelCollector(columns=split_columns(columns)[0]))
    labels, part = _split_part(labels)
    if group is not None and labels.is_dir():
        raise UsageError("--group names a column of a table", where=labels, hint="give a table")
    collector = LabelCollector(part, split_columns(columns)[0])
    tracks = read_files(labels, collector, group)
    if data is None:
        found = _placed(tracks, labels)
    else:
        media = Media(data, {track.path.absolute() for track in tracks})
        found = _matched(tracks, labels, media, collector)
    recordings: list[Recording] = []
    for source, by_file in found.items():
        for track in choose_tracks(source, by_file, collector):
            end_s = None if data is None else length_s(source)
            recordings.append(checked(_recording(source, track), collector, end_s))
    collector.raise_errors()
    if not recordings:
        raise UsageError("the labels contain no recordings", where=labels)
    return recordings


def _data(data: Path | None, group: str | None, collector: LabelCollector) -> list[Recording]:
    if data is None:
        raise UsageError("neither data nor labels", where="--data")
    if not data.exists():
        raise UsageError("no such file or folder", where=data)
    if data.is_dir() and group is not None:
        raise UsageError("--group names a column of a table", where=data, hint="give a table")
    recordings = list(read_classes(data)) if data.is_dir() else _listed(data, group, collector)
    if not recordings:
        raise UsageError(
            "no examples",
            where=data,
            hint="make a folder with recordings for each class, or a table with the columns"
            f" {', '.join(COLUMNS)}",
        )
    return recordings


def _listed(table: Path, group: str | None, collector: LabelCollector) -> list[Recording]:
    """Return the recordings of a table, whose paths are relative to it."""
    recordings: list[Recording] = []
    for track in read_table(table, collector, group, files=True):
        if not track.labels:  # its lines are invalid
            continue
        (name,) = track.names
        try:
            sources = expand(str(table.parent / name))
        except (SourceError, UsageError) as error:
            collector.error(table, track.labels[0].where.rpartition(", ")[2], str(error))
            continue
        for source in sources:
            recording = replace(_recording(source, track), group=track.group or name)
            # Each line is an example; reading one beyond the end of the recording reports it.
            recordings.append(checked(recording, collector, None))
    collector.raise_errors()
    return recordings


def _placed(tracks: Iterable[LabelTrack], labels: Path) -> dict[str, TracksByFile]:
    """Return the tracks by the name of their recording.

    The name is the path in the labels, or else the relative path of the label file, where
    ``clip.txt`` and ``clip.mp4.srt`` belong to one recording.
    """
    root = labels if labels.is_dir() else labels.parent
    found: dict[str, TracksByFile] = {}
    paths: dict[str, str] = {}
    for track in tracks:
        place = track.path.relative_to(root).with_name(recording_name(track.path)).as_posix()
        name = place if track.single else track.names[0]
        found.setdefault(name, {}).setdefault(track.path, []).append(track)
        for alias in track.names:
            if "/" in alias:
                paths.setdefault(name, alias)
    longer: dict[str, list[str]] = {}
    for name in found:
        stem, ending = os.path.splitext(name)
        if ending and stem in found:
            longer.setdefault(stem, []).append(name)
    for stem, names in longer.items():
        if len(names) == 1:
            found[names[0]].update(found.pop(stem))
    return {paths.get(name, name): by_file for name, by_file in found.items()}


def _matched(
    tracks: Sequence[LabelTrack], labels: Path, media: Media, collector: LabelCollector
) -> dict[str, TracksByFile]:
    """Return the tracks by the recording that they belong to; log a warning for the others."""
    found: dict[str, TracksByFile] = {}
    missing: list[str] = []
    for track in tracks:
        names = (*track.names, recording_name(track.path)) if track.single else track.names
        folder = track.path.relative_to(labels).parent if labels.is_dir() else Path()
        try:
            medium = media.find(names, PurePosixPath(folder.as_posix()))
        except UsageError as error:
            collector.error(track.path, names[0], str(error))
            continue
        if medium is None and track.single and len(media.found) == len(tracks) == 1:
            medium = media.found[0]  # one label file and one recording belong together
        if medium is None:
            missing.append(names[0])
        else:
            found.setdefault(medium.source, {}).setdefault(track.path, []).append(track)
    if missing and not found:
        collector.raise_errors()
        raise UsageError(
            f"none of the recordings was found: {abbreviate(missing)}", where=media.data
        )
    collector.unlabelled = [p for p in collector.unlabelled if p.absolute() not in media.paths]
    if missing:
        log.warning("%s: no recording for the labels of %s", media.data, abbreviate(missing))
    if unlabelled := media.without(found):
        log.warning("%s: no labels for %s, left out", media.data, abbreviate(unlabelled))
    return found


def _recording(source: str, track: LabelTrack) -> Recording:
    labels = tuple(sorted(track.labels, key=lambda label: label.start_s))
    return Recording(source, labels, track.group or source, track.whole, track.duration_s)


def _split_part(labels: Path) -> tuple[Path, str | None]:
    """Split LABELS#PART; both may contain "#". An existing file of this name takes precedence."""
    labels = Path(text := stored_path(str(labels)))
    at = -1
    while not Path(text).exists() and (at := text.find("#", at + 1)) >= 0:
        if Path(text[:at]).exists():
            return Path(text[:at]), text[at + 1 :]
    return labels, None


def choose_tracks(name: str, tracks: TracksByFile, collector: LabelCollector) -> list[LabelTrack]:
    """Return the tracks of one of the files with labels of the recording ``name``.

    If all files agree, it is the most exact one, otherwise the newest; this is reported, and it is
    an error if no file is newer than the others.
    """
    paths = sorted(tracks, key=_exactness)
    if len(paths) > 1 and any(not _agree(tracks[paths[0]], tracks[path]) for path in paths[1:]):
        paths.sort(key=lambda path: -path.stat().st_mtime)
        newest, second = paths[:2]
        if newest.stat().st_mtime - second.stat().st_mtime < _SAME_S:
            what = f"the labels of {name} differ from {second}, and neither file is newer"
            collector.error(newest, "all labels", f"{what}; remove one of them")
        collector.warn("labels differ between files, the newest is used", str(newest))
    return tracks[paths[0]]


def _exactness(path: Path) -> int:
    suffix = path.suffix.lower()
    return _EXACT.index(suffix) if suffix in _EXACT else len(_EXACT)


def _agree(one: Sequence[LabelTrack], other: Sequence[LabelTrack]) -> bool:
    """Return whether two files have the same labels within the precision of their formats."""
    rows, others = _rows(one), _rows(other)
    return len(rows) == len(others) and all(
        a[2] == b[2] and abs(a[0] - b[0]) <= _SAME_TIME_S and abs(a[1] - b[1]) <= _SAME_TIME_S
        for a, b in zip(rows, others, strict=True)
    )


def _rows(tracks: Sequence[LabelTrack]) -> list[tuple[float, float, str]]:
    """Return start, end and letters of each label, in an order not affected by rounding."""
    rows = [
        (
            label.start_s,
            _FOREVER_S if label.end_s is None else label.end_s,
            "".join(c for c in folded(label.label) if c.isalnum()),
        )
        for track in tracks
        for label in track.labels
    ]
    return sorted(rows, key=lambda row: (row[2], row[0], row[1]))
