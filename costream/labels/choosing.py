"""Choice of one label file per recording when there are several.

A run in several formats writes several files; a person may then correct one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from costream.labels.intake import LabelCollector, LabelTrack

# A run writes its files at about the same time, and some file systems store times to 2 s.
_SAME_S = 3.0
_SAME_TIME_S = 2e-3  # rounding difference between formats with milliseconds
_FOREVER_S = 1e12
# From the most exact formats to those that round times or modify labels.
_EXACT = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".eaf", ".vtt", ".srt", ".rttm")


TracksByFile: TypeAlias = dict[Path, list[LabelTrack]]  # tracks of one recording by file


def choose_tracks(name: str, told: TracksByFile, intake: LabelCollector) -> list[LabelTrack]:
    """Return the tracks of one of the files with labels of the recording ``name``.

    If all files agree, it is the most exact one, otherwise the newest; this is reported, and it is
    an error if no file is newer than the others.
    """
    paths = sorted(told, key=_exactness)
    if len(paths) > 1 and any(not _agree(told[paths[0]], told[path]) for path in paths[1:]):
        paths.sort(key=lambda path: -path.stat().st_mtime)
        newest, second = paths[:2]
        if newest.stat().st_mtime - second.stat().st_mtime < _SAME_S:
            what = f"the labels of {name} differ from {second}, and neither file is newer"
            intake.wrong(newest, "whole file", f"{what}; remove one of them")
        intake.odd("labels differ between files, the newest is used", str(newest))
    return told[paths[0]]


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
            "".join(c for c in label.label.casefold() if c.isalnum()),
        )
        for track in tracks
        for label in track.labels
    ]
    return sorted(rows, key=lambda row: (row[2], row[0], row[1]))
