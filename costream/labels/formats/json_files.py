"""Labels from JSON: results of costream and annotations of data sets."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from costream.core.errors import UsageError
from costream.core.label_sets import THUMOS14
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, integer, read_text
from costream.labels.formats.annotation_projects import is_tasks, read_tasks
from costream.labels.formats.boris_projects import read_boris
from costream.labels.formats.costream_results import read_results
from costream.labels.formats.editor_timelines import read_otio
from costream.labels.formats.frame_arrays import stretches
from costream.labels.recording import Label

_THUMOS = re.compile(r"video_(test|validation)_[0-9]+")
_NAMED = ("file", "video", "sound", "table")  # members that name the recording
CLASSES = "class_list.txt"  # of MultiTHUMOS: lines "number name", next to the annotations


def read_document(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the tracks of a JSON document.

    Supported are results of costream; the timeline of a recording under "segments"; "database" of
    ActivityNet or THUMOS14; "actions" per video of MultiTHUMOS or Charades; the class of each
    frame of "videos"; tasks of Label Studio; a list of labels; projects of BORIS; and timelines of
    OpenTimelineIO. A part is a subset, or a track. Raises NoLabelsError for anything else.
    """
    content = _parse(path)
    if is_tasks(content):
        return read_tasks(path, content, collector)
    if isinstance(content, list) and content and all(map(_is_listed, content)):
        return _list_of_labels(path, content, collector)
    document = _members(path, content)
    if "OTIO_SCHEMA" in document:
        return read_otio(path, collector)
    if isinstance(document.get("observations"), dict):
        return read_boris(path, collector)
    if str(document.get("schema", "")).startswith("costream/"):
        return read_results(path, collector)
    if isinstance(document.get("segments"), list):
        return iter([_timeline(path, document, collector)])
    if isinstance(document.get("database"), dict):
        return _database(path, document["database"], collector)
    if isinstance(document.get("videos"), list) and isinstance(document.get("classes"), list):
        return _videos(path, document, collector)
    if document and all(isinstance(v, dict) and "actions" in v for v in document.values()):
        return _actions(path, document, collector)
    raise NoLabelsError("no labels in this JSON", where=path)


def _is_listed(entry: Any) -> bool:
    return isinstance(entry, dict) and {"label", "start", "end"} <= entry.keys()


def _list_of_labels(
    path: Path, entries: list[dict[str, Any]], collector: LabelCollector
) -> Iterator[LabelTrack]:
    """Yield the recordings of a list of labels that name them, as of Create ML."""
    found: dict[str, list[Label]] = {}
    for number, entry in enumerate(entries, 1):
        name = next((str(entry[key]) for key in _NAMED if entry.get(key)), "")
        labels = found.setdefault(name, [])
        times = entry["start"], entry["end"]
        labels += _label(collector, path, f"entry {number}", *times, entry["label"])
    single = len(found) == 1
    if not single and "" in found:
        raise UsageError("entries without the name of their recording", where=path)
    for name, labels in found.items():
        yield LabelTrack(path, (name,) if name else (), tuple(labels), single=single)


def _parse(path: Path) -> Any:
    try:
        return json.loads(read_text(path), parse_int=integer)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot be read as JSON ({error})", where=path) from error


def _members(path: Path, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise NoLabelsError("no labels in this JSON", where=path)
    return content


def _timeline(path: Path, document: Mapping[str, Any], collector: LabelCollector) -> LabelTrack:
    """Return the segments of one recording; with "fps", "start" and "end" are frames."""
    fps, frames = document.get("fps"), document.get("frames")
    rate_hz = float(fps) if isinstance(fps, (int, float)) and fps > 0 else None
    labels: list[Label] = []
    for number, entry in enumerate(map(_object, document["segments"]), 1):
        start, end = entry.get("start_s"), entry.get("end_s")
        if start is None and rate_hz is not None:
            start, end = (_seconds(entry.get(key), rate_hz) for key in ("start", "end"))
        labels += _label(collector, path, f"segment {number}", start, end, entry.get("label"))
    names = tuple(document[key] for key in _NAMED if isinstance(document.get(key), str))
    duration_s = None if rate_hz is None else _seconds(frames, rate_hz)
    return LabelTrack(path, names, tuple(labels), duration_s)


def _seconds(frame: Any, rate_hz: float) -> float | None:
    return frame / rate_hz if isinstance(frame, (int, float)) else None


def _wanted(
    videos: Mapping[str, Any], collector: LabelCollector
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the members of each video in a requested subset."""
    for video, entry in ((video, _object(entry)) for video, entry in videos.items()):
        if collector.wants(_text(entry.get("subset"))):
            yield video, entry


def _database(
    path: Path, videos: Mapping[str, Any], collector: LabelCollector
) -> Iterator[LabelTrack]:
    """Yield the videos of ActivityNet or THUMOS14; times may be text."""
    for video, entry in _wanted(videos, collector):
        labels: list[Label] = []
        for number, note in enumerate(map(_object, _list(entry.get("annotations"))), 1):
            segment = _list(note.get("segment"))
            start, end = segment if len(segment) == 2 else (None, None)
            spot = f"{video}, annotation {number}"
            labels += _label(collector, path, spot, start, end, note.get("label"))
        yield _of_many(path, video, labels, entry)


def _actions(
    path: Path, videos: Mapping[str, Any], collector: LabelCollector
) -> Iterator[LabelTrack]:
    """Yield the videos of MultiTHUMOS, whose actions are class number, start, end."""
    names = _class_names(path, videos)
    for video, entry in _wanted(videos, collector):
        labels: list[Label] = []
        for number, action in enumerate(_list(entry.get("actions")), 1):
            spot = f"{video}, action {number}"
            if not isinstance(action, list) or len(action) != 3:
                collector.error(path, spot, "not [class, start, end]")
                continue
            name = names.get(str(action[0]), str(action[0]))
            labels += _label(collector, path, spot, action[1], action[2], name)
        yield _of_many(path, video, labels, entry)


def _class_names(path: Path, videos: Mapping[str, Any]) -> dict[str, str]:
    """Return class names by number, from CLASSES next to the file, or of THUMOS14."""
    class_list = path.with_name(CLASSES)
    if class_list.is_file():
        rows = (line.split(None, 1) for line in read_text(class_list).split("\n"))
        return {row[0]: row[1].strip() for row in rows if len(row) == 2}
    if all(map(_THUMOS.fullmatch, videos)):
        return {str(k): name for k, name in enumerate(THUMOS14.names[:-1]) if k}
    return {}


def _videos(
    path: Path, document: Mapping[str, Any], collector: LabelCollector
) -> Iterator[LabelTrack]:
    """Yield videos whose "labels" are the class number of each frame."""
    names = [str(name) for name in document["classes"]]
    for number, entry in enumerate(map(_object, document["videos"]), 1):
        video, values = str(entry.get("video", f"video {number}")), _list(entry.get("labels"))
        labels: list[Label] = []
        try:
            rate_hz = float(document["fps"])
            for start_s, end_s, name, row in stretches(values, names, rate_hz):
                labels += collector.label(path, f"{video}, frame {row}", start_s, end_s, name)
            duration_s = len(values) / rate_hz
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise UsageError(f"no frame classes ({error!r})", where=f"{path}, {video}") from error
        yield LabelTrack(path, (video,), tuple(labels), duration_s, single=False)


def _label(
    collector: LabelCollector, path: Path, spot: str, start: Any, end: Any, name: Any
) -> list[Label]:
    """Return the label of JSON values; none for other values, which are reported."""
    for value in (start, end):
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            collector.lose(path, spot, "no start or no end")
            return []
    return collector.label(path, spot, start, end, _text(name) or "")


def _of_many(path: Path, video: str, labels: list[Label], entry: Mapping[str, Any]) -> LabelTrack:
    duration: Any = entry.get("duration")
    has_parts = _text(entry.get("subset")) is not None
    is_known = isinstance(duration, (int, float)) and 0 < duration < math.inf
    duration_s = float(duration) if is_known else None
    return LabelTrack(path, (video,), tuple(labels), duration_s, single=False, has_parts=has_parts)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
