"""One file of labels for each recording, where several tell of it.

A run in several formats gives several; then a person corrects one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from costream.labels.intake import Intake, Track

# A run writes its files at about one time, and some file systems know it to 2 s.
_SAME_S = 3.0
_SAME_TIME_S = 2e-3  # how far apart the formats put a time, with milliseconds
_FOREVER_S = 1e12
# The formats from the most exact to those that round times or change labels.
_EXACT = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".eaf", ".vtt", ".srt", ".rttm")


Told: TypeAlias = dict[Path, list[Track]]  # what each file says of one recording


def choose(name: str, told: Told, intake: Intake) -> list[Track]:
    """Give the tracks of one file of those that tell of the recording ``name``.

    Where all say the same it is the most exact one, and else the newest: that is told, and it is
    wrong where no file is newer than the others.
    """
    paths = sorted(told, key=_exactness)
    if len(paths) > 1 and any(not _agree(told[paths[0]], told[path]) for path in paths[1:]):
        paths.sort(key=lambda path: -path.stat().st_mtime)
        newest, second = paths[:2]
        if newest.stat().st_mtime - second.stat().st_mtime < _SAME_S:
            what = f"says of {name} something else than {second}, and neither is newer"
            intake.wrong(newest, "all of it", f"{what}; leave one of them")
        intake.odd("labels differ between files, the newest is taken", str(newest))
    return told[paths[0]]


def _exactness(path: Path) -> int:
    suffix = path.suffix.lower()
    return _EXACT.index(suffix) if suffix in _EXACT else len(_EXACT)


def _agree(one: Sequence[Track], other: Sequence[Track]) -> bool:
    """Say whether two files have the same labels, as far as their formats can tell."""
    rows, others = _rows(one), _rows(other)
    return len(rows) == len(others) and all(
        a[2] == b[2] and abs(a[0] - b[0]) <= _SAME_TIME_S and abs(a[1] - b[1]) <= _SAME_TIME_S
        for a, b in zip(rows, others, strict=True)
    )


def _rows(tracks: Sequence[Track]) -> list[tuple[float, float, str]]:
    """Give start, end and the letters of each label, in an order that rounding does not change."""
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
