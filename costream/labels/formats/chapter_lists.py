"""Labels from chapters: FFmpeg's metadata, and lines "0:03 label" as in descriptions of videos."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, read_text, seconds
from costream.labels.recording import Label

_CLOCK = r"(?:\d+:)?\d{1,2}:\d\d"
_LINE = re.compile(rf"[(\[]?({_CLOCK})(?:\s*[-–—]\s*({_CLOCK}))?[)\]]?(?:\s*[-–—:])?\s+(\S.*)")
_CONTINUED = re.compile(r"((?<!\\)(?:\\\\)*)\\\n")  # a value with an odd number of "\" at its end
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def are_chapters(lines: Sequence[str]) -> bool:
    """Return whether two or more lines of a text are chapters, each later than the one before."""
    starts = [seconds(match[1]) for match in map(_LINE.fullmatch, lines) if match]
    return len(starts) > 1 and all(a < b for a, b in pairwise(starts))


def read_chapters(path: Path, lines: Sequence[str], collector: LabelCollector) -> LabelTrack:
    """Return chapters, each of which lasts until the next, and the last to the end.

    A line may state the end, too: "0:00 - 3:32 label". Lines without a time are left out.
    """
    found: list[tuple[int, re.Match[str]]] = []
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            collector.warn("lines without a time, left out", f"{path}, {line!r:.40}")
        else:
            found.append((number, match))
    ends = [match[1] for _, match in found[1:]]
    labels: list[Label] = []
    for (number, match), end in zip(found, [*ends, None], strict=True):
        labels += collector.label(path, f"line {number}", match[1], match[2] or end, match[3])
    return LabelTrack(path, (), tuple(labels))


def read_ffmetadata(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the chapters of FFmpeg's metadata; a chapter without a title is left out.

    Raises NoLabelsError for another text, UsageError for times that are not numbers.
    """
    text = _CONTINUED.sub(r"\1 ", read_text(path))
    if not text.startswith(";FFMETADATA"):
        raise NoLabelsError("no metadata of FFmpeg", where=path)
    labels: list[Label] = []
    sections = [_values(section) for section in text.split("\n[CHAPTER]")[1:]]
    for number, values in enumerate(sections, 1):
        spot = f"chapter {number}"
        try:
            after = sections[number : number + 1]
            start = _time_s(values, "START")
            # Without an end a chapter lasts until the next, as in FFmpeg.
            ends = (
                _time_s(of, key) for of, key in ((values, "END"), *((s, "START") for s in after))
            )
            end = next((end for end in ends if end is not None), None)
            if start is None:
                raise ValueError("no START")
        except (ValueError, ZeroDivisionError) as error:
            raise UsageError(
                f"a chapter without times ({error!r:.60})", where=f"{path}, {spot}"
            ) from error
        labels += collector.label(
            path, spot, start, end, _ESCAPED.sub(r"\1", values.get("TITLE", ""))
        )
    yield LabelTrack(path, (), tuple(labels))


def _values(section: str) -> dict[str, str]:
    rows = [line.partition("=") for line in section.partition("\n[")[0].split("\n")]
    return {key.strip().upper(): value for key, _, value in rows}


def _time_s(values: Mapping[str, str], key: str) -> float | None:
    """Return a time of a chapter in seconds; None if it has none, ValueError for other text."""
    if key not in values:
        return None
    above, _, below = values.get("TIMEBASE", "1/1000000000").partition("/")
    return float(values[key]) * float(above) / float(below)
