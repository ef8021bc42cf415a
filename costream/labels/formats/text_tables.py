"""Labels from text files: of Audacity, Raven Pro, ELAN and RTTM; chapters; of frames.

Text exported by ELAN has the columns tier, participant, begin, end, duration and annotation. Text
about frames has the label of each frame in a line, or lines "1-81 walk" (Breakfast).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, read_text, seconds
from costream.labels.formats.chapter_lists import are_chapters, read_chapters
from costream.labels.formats.csv_files import read_table
from costream.labels.formats.label_headings import KNOWN, given_rate_hz
from costream.labels.formats.tool_tables import read_events
from costream.labels.recording import Label

_BEGIN, _END, _OFFSET = "begin time (s)", "end time (s)", "file offset (s)"
_LENGTH = "delta time (s)"
_CALLED = ("label", "annotation", "species", "type", "common name")  # usual columns for labels
_AUDACITY = re.compile(r"-?[0-9.,:]+\t-?[0-9.,:]+(\t|$)")
_PASTED = re.compile(r"\d+(\.\d+)?\t(?![-0-9.,:]+\t)[^\t]*\t[^\t]*[^\d.\t][^\t]*(\t[^\t]*){0,3}$")
_BLANKS = re.compile(r"(\d+\.\d+) +(\d+\.\d+) +([^\d\s.-].*)")
_PLACES = ("begin file", "begin path")  # columns of the recording; BirdNET writes its path
_ELAN_TIME = re.compile(r"\d{1,2}:\d\d:\d\d\.\d{3}")
_FRAMES = re.compile(r"(\d+)-(\d+)\s+(\S.*)")
_REPEATS = 4  # lines of frames for each change of the label, at least
_NO_VALUE = "<NA>"  # an RTTM field without a value


def read_text_labels(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the labels of an Audacity or Raven text file, distinguished by the first line."""
    text = read_text(path)
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if _BEGIN in first.lower().split("\t"):
        return _raven(path, lines, collector)
    rows = [line.strip() for line in lines if line.strip()]
    if are_chapters(rows):
        return iter([read_chapters(path, rows, collector)])
    if rows and all(map(_PASTED.match, rows)):
        # Events as they are copied from BORIS: time, subject, behaviour, modifier, comment
        events = [row.split("\t")[:3] for row in rows]
        return read_events(
            path, ("time", "subject", "behavior"), list(enumerate(events, 1)), collector
        )
    if rows and all(map(_BLANKS.fullmatch, rows)):  # of Scaper
        lines = [_BLANKS.sub(r"\1\t\2\t\3", row) for row in rows]
        return iter([_audacity(path, lines, collector)])
    if not first or _AUDACITY.match(first) or path.name.lower().endswith(".audacity.txt"):
        return iter([_audacity(path, lines, collector)])
    if not _ELAN_TIME.match(first) and len(_elan_times(first)) >= 2:
        return iter([_elan(path, lines, collector)])
    names = [name.strip().lower() for name in re.split("[\t,;]", first)]
    known = KNOWN.union(heading.lower() for heading in collector.columns.values())
    if len(names) > 1 and not known.isdisjoint(names):
        return read_table(path, collector)
    if all(map(_FRAMES.fullmatch, rows)):
        return iter([_frames(path, rows, collector)])
    frames = [line.strip() for line in text.rstrip().split("\n")]
    if len(frames) > _REPEATS * (1 + sum(one != other for one, other in pairwise(frames))):
        return iter([_frames(path, frames, collector)])
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


def _elan_times(line: str) -> list[str]:
    return [cell for cell in line.split("\t") if _ELAN_TIME.fullmatch(cell.strip())]


def _elan(path: Path, lines: list[str], collector: LabelCollector) -> LabelTrack:
    """Return the annotations of text that ELAN exported; a part is a tier."""
    labels: list[Label] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        times, cells = _elan_times(line), line.split("\t")
        if len(times) < 2:
            collector.lose(path, f"line {number}", "no begin and end")
        elif collector.wants(cells[0].strip()):
            labels += collector.label(path, f"line {number}", times[0], times[1], cells[-1])
    return LabelTrack(path, (), tuple(labels), has_parts=True)


def _frames(path: Path, rows: list[str], collector: LabelCollector) -> LabelTrack:
    """Return the labels of frames: one or none a line, or of ranges whose first frame is 1."""
    rate_hz = given_rate_hz(collector.columns, str(path))
    labels: list[Label] = []
    at = 0  # frames so far
    for number, (text, same) in enumerate(groupby(rows), 1):
        found = _FRAMES.fullmatch(text)
        if found is None:
            first, end, name = at, at + len(list(same)), text
        else:
            first, end, name = int(found[1]) - 1, int(found[2]), found[3]
        spot = f"stretch {number}"
        if name:
            labels += collector.label(path, spot, first / rate_hz, end / rate_hz, name)
        at = end
    return LabelTrack(path, (), tuple(labels), at / rate_hz)


def _raven(path: Path, lines: list[str], collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the tracks of a Raven Pro selection table, which may refer to several files."""
    head = [name.strip().lower() for name in lines[0].split("\t")]
    name = next((name for name in _CALLED if name in head), None)
    if name is None or not {_END, _LENGTH} & set(head):
        missing = "Label" if name is None else "End Time (s)"
        columns = ", ".join(lines[0].strip().split("\t"))
        what = f"the table has no column {missing}; its columns are {columns:.300}"
        raise UsageError(what, where=f"{path}, line 1")
    of_file = next((column for column in _PLACES if column in head), "")
    found: dict[str, dict[tuple[str, float], Label]] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        cells = dict(zip(head, line.split("\t"), strict=False))
        spot = f"line {number}"
        start, end = cells.get(_BEGIN, ""), cells.get(_END, "no time")
        if _END not in head:
            try:
                end = str(seconds(start) + seconds(cells.get(_LENGTH, "no time")))
            except ValueError as error:
                collector.error(path, spot, str(error))
                continue
        if cells.get(_OFFSET, "").strip():
            # Begin and end are relative to the first of several files, the offset to this file.
            try:
                length_s = seconds(end) - seconds(start)
                start, end = cells[_OFFSET], str(seconds(cells[_OFFSET]) + length_s)
            except ValueError as error:
                collector.error(path, spot, str(error))
                continue
        file = cells.get(of_file, "").strip() if of_file else ""
        if of_file and not file:
            collector.lose(path, spot, "no file")
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
