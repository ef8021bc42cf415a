"""Labels from text files of annotation tools: Audacity, Raven Pro, and RTTM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, read_text, seconds
from costream.labels.recording import Label

_BEGIN, _END, _OFFSET = "begin time (s)", "end time (s)", "file offset (s)"
_CALLED = ("label", "annotation", "species", "type")  # usual columns for labels
_AUDACITY = re.compile(r"-?[0-9.,:]+\t-?[0-9.,:]+(\t|$)")
_NO_VALUE = "<NA>"  # an RTTM field without a value


def read_text_labels(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the labels of an Audacity or Raven text file, distinguished by the first line."""
    text = read_text(path)
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if _BEGIN in first.lower().split("\t"):
        return _raven(path, lines, collector)
    if not first or _AUDACITY.match(first) or path.name.lower().endswith(".audacity.txt"):
        return iter([_audacity(path, lines, collector)])
    raise NoLabelsError(
        f"no Audacity or Raven labels: line 1 is {first.strip()!r:.60}",
        where=path,
        hint="Audacity has lines START, END, LABEL with tabs between them, Raven headings",
    )


def _audacity(path: Path, lines: list[str], collector: LabelCollector) -> LabelTrack:
    labels: list[Label] = []
    for number, line in enumerate(lines, 1):
        # A line that begins with a backslash contains the frequencies of the line before it.
        if not line.strip() or line.startswith("\\"):
            continue
        start, end, name = (*line.split("\t", 2), "", "")[:3]
        if not end:
            collector.error(path, f"line {number}", "no start and end, separated by tabs")
            continue
        labels += collector.label(path, f"line {number}", start, end, name)
    return LabelTrack(path, (), tuple(labels))


def _raven(path: Path, lines: list[str], collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the tracks of a Raven Pro selection table, which may refer to several files."""
    head = [name.strip().lower() for name in lines[0].split("\t")]
    name = next((name for name in _CALLED if name in head), None)
    if name is None or _END not in head:
        missing = "Label" if name is None else "End Time (s)"
        columns = ", ".join(lines[0].strip().split("\t"))
        what = f"the table has no column {missing}; its columns are {columns:.300}"
        raise UsageError(what, where=f"{path}, line 1")
    found: dict[str, dict[tuple[str, float], Label]] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        cells = dict(zip(head, line.split("\t"), strict=False))
        spot = f"line {number}"
        start, end = cells.get(_BEGIN, ""), cells.get(_END, "no time")
        if cells.get(_OFFSET, "").strip():
            # Begin and end are relative to the first of several files, the offset to this file.
            try:
                length_s = seconds(end) - seconds(start)
                start, end = cells[_OFFSET], str(seconds(cells[_OFFSET]) + length_s)
            except ValueError as error:
                collector.error(path, spot, str(error))
                continue
        file = cells.get("begin file", "").strip()
        if "begin file" in head and not file:
            collector.error(path, spot, "no file")
            continue
        of = found.setdefault(file, {})
        for label in collector.label(path, spot, start, end, cells.get(name, "")):
            # A selection has a row for each view: waveform and spectrogram.
            of.setdefault((cells.get("selection") or spot, label.start_s), label)
    yield from _tracks(path, {file: list(labels.values()) for file, labels in found.items()})


def read_rttm(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the SPEAKER lines of Rich Transcription Time Marked (NIST), for one or more files.

    Spaces in names and labels are underscores in this format and are left so.
    """
    found: dict[str, list[Label]] = {}
    text = read_text(path)
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        if fields[:1] != ["SPEAKER"]:
            continue
        spot = f"line {number}"
        try:
            if len(fields) < 8:
                raise ValueError(f"{len(fields)} fields instead of 10")
            end_s = seconds(fields[3]) + seconds(fields[4])
        except ValueError as error:
            collector.error(path, spot, str(error))
            continue
        name = "" if fields[7] == _NO_VALUE else fields[7]
        labels = found.setdefault(fields[1], [])
        labels += collector.label(path, spot, fields[3], end_s, name)
    if text.strip() and "SPEAKER" not in text:
        raise NoLabelsError("no SPEAKER lines", where=path)
    yield from _tracks(path, found)


def _tracks(path: Path, found: dict[str, list[Label]]) -> Iterator[LabelTrack]:
    single = len(found) < 2
    if not found:
        yield LabelTrack(path, (), ())
    for file, labels in found.items():
        names = (file,) if file else ()
        yield LabelTrack(path, names, tuple(labels), single=single)
