"""Labels from chapters: FFmpeg's metadata, and lines "0:03 label" as in descriptions of videos."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, read_text, seconds
from costream.labels.recording import Label

_LINE = re.compile(r"[(\[]?((?:\d+:)?\d{1,2}:\d\d)[)\]]?(?:\s+[-–—]|:)?\s+(\S.*)")
_CONTINUED = re.compile(r"((?<!\\)(?:\\\\)*)\\\n")  # a value with an odd number of "\" at its end
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def are_chapters(lines: Sequence[str]) -> bool:
    """Return whether all lines of a text are chapters, the first at 0:00."""
    found = [_LINE.fullmatch(line) for line in lines]
    return bool(found) and all(found) and found[0] is not None and not seconds(found[0][1])


def read_chapters(path: Path, lines: Sequence[str], collector: LabelCollector) -> LabelTrack:
    """Return chapters, each of which lasts until the next, and the last to the end."""
    found = [match.groups() for match in map(_LINE.fullmatch, lines) if match]
    ends = [end for _, (end, _) in pairwise(found)]
    labels: list[Label] = []
    for number, ((start, name), end) in enumerate(zip(found, [*ends, None], strict=True), 1):
        labels += collector.label(path, f"line {number}", start, end, name)
    return LabelTrack(path, (), tuple(labels))


def read_ffmetadata(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the chapters of FFmpeg's metadata; a chapter without a title is left out.

    Raises NoLabelsError for another text, UsageError for times that are not numbers.
    """
    text = _CONTINUED.sub(r"\1 ", read_text(path))
    if not text.startswith(";FFMETADATA"):
        raise NoLabelsError("no metadata of FFmpeg", where=path)
    labels: list[Label] = []
    for number, section in enumerate(text.split("\n[CHAPTER]")[1:], 1):
        rows = [line.partition("=") for line in section.partition("\n[")[0].split("\n")]
        values = {key.strip().upper(): value for key, _, value in rows}
        spot = f"chapter {number}"
        title = _ESCAPED.sub(r"\1", values.get("TITLE", ""))
        try:
            above, _, below = values.get("TIMEBASE", "1/1000000000").partition("/")
            unit_s = float(above) / float(below)
            start, end = (float(values[key]) * unit_s for key in ("START", "END"))
        except (KeyError, ValueError, ZeroDivisionError) as error:
            raise UsageError(
                f"a chapter without times ({error!r:.60})", where=f"{path}, {spot}"
            ) from error
        labels += collector.label(path, spot, start, end, title)
    yield LabelTrack(path, (), tuple(labels))
