"""Labels from results of costream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from costream.core.errors import SourceError, UsageError
from costream.core.records import Header, Segment, Summary
from costream.labels.collector import LabelCollector, LabelTrack
from costream.labels.recording import Label
from costream.sinks.result_reader import Content, UnreadableRecord, numbered


def read_results(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the timeline of every source in the file.

    Raises UsageError for a file without results, or with two runs over one source, as their times
    may differ.
    """
    try:
        tracks = list(_tracks(path, collector))
    except SourceError as error:
        raise UsageError(str(error)) from error
    names = [track.names for track in tracks]
    for name in names:
        if names.count(name) > 1:
            what = f"contains {names.count(name)} runs over one source"
            raise UsageError(what, where=path, hint="keep the lines of only one of them")
    yield from (replace(track, single=len(tracks) == 1 or not track.names) for track in tracks)


def _tracks(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    header: Header | None = None
    labels: list[Label] = []
    is_begun, number = False, 0
    for line, content in numbered(path):
        if isinstance(content, Header):
            if is_begun:
                yield _track(path, header, labels)
            header, labels, is_begun, number = content, [], True, 0
            for head in header.heads or ():
                collector.wants(head.model)
        elif isinstance(content, Segment):
            is_begun, number = True, number + 1
            spot = f"segment {number}" if line is None else f"line {line}"
            if collector.wants(content.model):
                labels += collector.label(path, spot, content.start_s, content.end_s, content.label)
        _report_problems(path, content, collector)
    yield _track(path, header, labels)


def _report_problems(path: Path, content: Content, collector: LabelCollector) -> None:
    """Report what is incomplete or damaged according to a record."""
    if isinstance(content, Header) and _is_part(content):
        collector.warn("results of a part of a recording, the rest is background", str(path))
    elif isinstance(content, UnreadableRecord) and content.last:
        collector.warn("truncated results", str(path))
    elif isinstance(content, UnreadableRecord):
        spot = "its end" if content.line is None else f"line {content.line}"
        collector.error(path, spot, content.reason)
    elif isinstance(content, Summary) and not content.complete:
        collector.warn("interrupted runs", str(path))


def _track(path: Path, header: Header | None, labels: list[Label]) -> LabelTrack:
    if header is None:
        return LabelTrack(path, (), tuple(labels))
    return LabelTrack(
        path,
        (header.source,) if header.source else (),
        tuple(labels),
        None if _is_part(header) else header.duration_s,
        has_parts=header.heads is not None,
    )


def _is_part(header: Header) -> bool:
    """Return whether only a part of the recording was processed."""
    return bool(header.options.get("start_s")) or header.options.get("end_s") is not None
