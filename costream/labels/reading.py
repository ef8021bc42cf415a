"""Labels of all kinds: what a person, a tool or a data set says that recordings show."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from costream.errors import SourceError, UsageError
from costream.labels.classes import read_classes
from costream.labels.files import read_files, recording_name
from costream.labels.intake import Intake, Track, some
from costream.labels.media import Media
from costream.labels.recording import Recording
from costream.labels.tables import COLUMNS, read_table
from costream.sources.registry import expand

log = logging.getLogger("costream")


def read_recordings(
    data: Path | None, labels: Path | None, group: str | None = None
) -> list[Recording]:
    """Give the recordings that have labels, in the order of names or lines.

    Without ``labels``, ``data`` is a folder with a folder for each class, or a table with the
    columns file, start, end, label. Otherwise ``labels`` is a file of labels or a folder of such,
    and ``data`` the folder, or the file, with the recordings that they belong to; None where
    these are not needed. ``labels`` may end in ``#PART``: the only subset of a data set, tier or
    head that is wanted. ``group`` names the column of a table that says what may never be split.

    What is odd is warned of. Raises UsageError that names what is wrong, by file and line, and
    SourceError for a recording that is not there.
    """
    if labels is None:
        return _data(data, group)
    labels, part = _split_part(labels)
    if group is not None and labels.is_dir():
        raise UsageError("--group names a column of a table", where=labels, hint="give a table")
    intake = Intake(part)
    tracks = read_files(labels, intake, group)
    intake.settle()
    return _matched(tracks, labels, data)


def _data(data: Path | None, group: str | None) -> list[Recording]:
    if data is None:
        raise UsageError("neither data nor labels are given", where="--data")
    if not data.exists():
        raise UsageError("there is no such data", where=data)
    if data.is_dir() and group is not None:
        raise UsageError("--group names a column of a table", where=data, hint="give a table")
    recordings = list(read_classes(data) if data.is_dir() else _listed(data, group))
    if not recordings:
        raise UsageError(
            "no examples",
            where=data,
            hint="make a folder for each class, with recordings in it, or a table with the"
            f" columns {', '.join(COLUMNS)}",
        )
    return recordings


def _listed(table: Path, group: str | None) -> Iterator[Recording]:
    """Yield the recordings of a table, which are named relative to it."""
    intake = Intake()
    found: list[Recording] = []
    for track in read_table(table, intake, group, files=True):
        (name,) = track.names
        if not track.labels:  # its lines are wrong
            continue
        try:
            sources = expand(str(table.parent / name))
        except (SourceError, UsageError) as error:
            place, _, spot = track.labels[0].where.rpartition(", ")
            intake.wrong(Path(place), spot, str(error))
            continue
        found += [_recording(source, track, track.group or name) for source in sources]
    intake.settle()
    yield from found


def _matched(tracks: Sequence[Track], labels: Path, data: Path | None) -> list[Recording]:
    """Give the tracks as recordings, with the media they belong to."""
    if data is None:
        return [_recording(_names(track)[0], track, track.group) for track in tracks]
    media = Media(data, {track.path.absolute() for track in tracks})
    found: list[Recording] = []
    missing: list[str] = []
    for track in tracks:
        near = track.path.relative_to(labels).parent if labels.is_dir() else Path()
        medium = media.find(_names(track), PurePosixPath(near.as_posix()))
        if len(tracks) == len(media.found) == 1:  # whatever they are called
            medium = media.found[0]
        if medium is None:
            missing.append(_names(track)[0])
        else:
            found.append(_recording(medium.source, track, track.group))
    if not found:
        raise UsageError(f"none of the recordings is there: {some(missing)}", where=data)
    if missing:
        log.warning("%s: no recording of these labels: %s", data, some(missing))
    return found


def _names(track: Track) -> tuple[str, ...]:
    return (*track.names, recording_name(track.path)) if track.alone else track.names


def _recording(source: str, track: Track, group: str | None) -> Recording:
    labels = tuple(sorted(track.labels, key=lambda label: label.start_s))
    return Recording(source, labels, group or source, track.whole, track.duration_s)


def _split_part(labels: Path) -> tuple[Path, str | None]:
    """Split LABELS#PART; both may hold "#". A file of that whole name comes first."""
    told = str(labels)
    at = -1
    while not Path(told).exists() and (at := told.find("#", at + 1)) >= 0:
        if Path(told[:at]).exists():
            return Path(told[:at]), told[at + 1 :]
    return labels, None
