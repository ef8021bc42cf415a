"""Labelled recordings from label files of all formats, class folders and tables."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from costream.errors import SourceError, UsageError
from costream.labels.checking import checked
from costream.labels.choosing import TracksByFile, choose_tracks
from costream.labels.classes import read_classes
from costream.labels.files import read_files, recording_name
from costream.labels.formats.csv_files import COLUMNS, read_table
from costream.labels.intake import LabelCollector, LabelTrack, abbreviate
from costream.labels.media import Media
from costream.labels.probing import length_s
from costream.labels.recording import Recording
from costream.sources.registry import expand

log = logging.getLogger("costream")


def read_recordings(
    data: Path | None, labels: Path | None, group: str | None = None
) -> list[Recording]:
    """Return the recordings that have labels, in the order of names or lines.

    Without ``labels``, ``data`` is a folder with a folder for each class, or a table with the
    columns file, start, end, label. Otherwise ``labels`` is a label file or a folder of label
    files, and ``data`` the folder or file with their recordings; None if these are not needed.
    ``labels`` may end in ``#PART``: the only subset of a data set, tier or head to read.
    ``group`` names the column of a table with groups that are never split.

    Minor problems are logged as warnings. Raises UsageError that names all errors by file and
    line, and SourceError for a missing recording.
    """
    if labels is None:
        return _data(data, group)
    labels, part = _split_part(labels)
    if group is not None and labels.is_dir():
        raise UsageError("--group names a column of a table", where=labels, hint="give a table")
    intake = LabelCollector(part)
    tracks = read_files(labels, intake, group)
    if data is None:
        found = _placed(tracks, labels)
    else:
        media = Media(data, {track.path.absolute() for track in tracks})
        found = _matched(tracks, labels, media, intake)
    recordings: list[Recording] = []
    for source, told in found.items():
        for track in choose_tracks(source, told, intake):
            end_s = None if data is None else length_s(source)
            recordings.append(checked(_recording(source, track), intake, end_s))
    intake.settle()
    if not recordings:
        raise UsageError("the labels contain no recordings", where=labels)
    return recordings


def _data(data: Path | None, group: str | None) -> list[Recording]:
    if data is None:
        raise UsageError("neither data nor labels are given", where="--data")
    if not data.exists():
        raise UsageError("there is no such file or folder", where=data)
    if data.is_dir() and group is not None:
        raise UsageError("--group names a column of a table", where=data, hint="give a table")
    recordings = list(read_classes(data)) if data.is_dir() else _listed(data, group)
    if not recordings:
        raise UsageError(
            "no examples",
            where=data,
            hint="make a folder with recordings for each class, or a table with the columns"
            f" {', '.join(COLUMNS)}",
        )
    return recordings


def _listed(table: Path, group: str | None) -> list[Recording]:
    """Return the recordings of a table, whose paths are relative to it."""
    intake = LabelCollector()
    recordings: list[Recording] = []
    for track in read_table(table, intake, group, files=True):
        if not track.labels:  # its lines are invalid
            continue
        (name,) = track.names
        try:
            sources = expand(str(table.parent / name))
        except (SourceError, UsageError) as error:
            intake.wrong(table, track.labels[0].where.rpartition(", ")[2], str(error))
            continue
        for source in sources:
            recording = replace(_recording(source, track), group=track.group or name)
            # Each line is an example; reading one beyond the end of the recording reports it.
            recordings.append(checked(recording, intake, None))
    intake.settle()
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
        name = place if track.alone else track.names[0]
        found.setdefault(name, {}).setdefault(track.path, []).append(track)
        for told in track.names:
            if "/" in told:
                paths.setdefault(name, told)
    longer: dict[str, list[str]] = {}
    for name in found:
        stem, ending = os.path.splitext(name)
        if ending and stem in found:
            longer.setdefault(stem, []).append(name)
    for stem, names in longer.items():
        if len(names) == 1:
            found[names[0]].update(found.pop(stem))
    return {paths.get(name, name): told for name, told in found.items()}


def _matched(
    tracks: Sequence[LabelTrack], labels: Path, media: Media, intake: LabelCollector
) -> dict[str, TracksByFile]:
    """Return the tracks by the recording that they belong to; log a warning for the others."""
    found: dict[str, TracksByFile] = {}
    missing: list[str] = []
    for track in tracks:
        names = (*track.names, recording_name(track.path)) if track.alone else track.names
        near = track.path.relative_to(labels).parent if labels.is_dir() else Path()
        try:
            medium = media.find(names, PurePosixPath(near.as_posix()))
        except UsageError as error:
            intake.wrong(track.path, names[0], str(error))
            continue
        if medium is None and track.alone and len(media.found) == len(tracks) == 1:
            medium = media.found[0]  # one label file and one recording belong together
        if medium is None:
            missing.append(names[0])
        else:
            found.setdefault(medium.source, {}).setdefault(track.path, []).append(track)
    if missing and not found:
        intake.settle()
        raise UsageError(
            f"none of the recordings was found: {abbreviate(missing)}", where=media.data
        )
    intake.passed_by = [p for p in intake.passed_by if p.absolute() not in media.paths]
    if missing:
        log.warning("%s: no recording for the labels of %s", media.data, abbreviate(missing))
    if unlabelled := media.without(found):
        log.warning("%s: no labels for %s, left out", media.data, abbreviate(unlabelled))
    return found


def _recording(source: str, track: LabelTrack) -> Recording:
    labels = tuple(sorted(track.labels, key=lambda label: label.start_s))
    return Recording(source, labels, track.group or source, track.whole, track.duration_s)


def _split_part(labels: Path) -> tuple[Path, str | None]:
    """Split LABELS#PART; both may contain "#". A file with the whole name takes precedence."""
    told = str(labels)
    at = -1
    while not Path(told).exists() and (at := told.find("#", at + 1)) >= 0:
        if Path(told[:at]).exists():
            return Path(told[:at]), told[at + 1 :]
    return labels, None
