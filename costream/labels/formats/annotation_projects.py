"""Labels from annotation servers: tasks of Label Studio (JSON), tracks of CVAT (XML)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError
from costream.labels.formats.elan_tiers import Element, read_xml
from costream.labels.formats.label_headings import given_rate_hz
from costream.labels.recording import Label

_LOCAL = "?d="  # of Label Studio's addresses of local files
_UPLOAD = re.compile(r"\A[0-9a-f]{8}-")  # put before the names of uploaded files
_TASK = ("id", "annotations", "predictions")  # of tasks, also of those to be imported
_CLASSES = ("timelinelabels", "labels")


def is_tasks(content: Any) -> bool:
    """Return whether a JSON document has tasks of Label Studio, exported as JSON or JSON-MIN."""
    return (
        isinstance(content, list)
        and bool(content)
        and all(
            isinstance(task, dict) and _media(task) and not task.keys().isdisjoint(_TASK)
            for task in content
        )
    )


def read_tasks(
    path: Path, tasks: list[dict[str, Any]], collector: LabelCollector
) -> Iterator[LabelTrack]:
    """Yield the timeline of each task of Label Studio.

    Times are seconds, or frames of which the first is 1 (``--columns fps=``). Of several
    annotations of a task the first is taken. Raises UsageError for frames of an unknown rate.
    """
    for task in tasks:
        labels: list[Label] = []
        try:
            labels += _labels(path, task, collector)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            collector.error(
                path, f"task {task.get('id', 1)}", f"invalid annotations ({error!r:.60})"
            )
        address = _media(task)
        name = unquote(address.partition(_LOCAL)[2]) or address.partition("?")[0]
        name = name.rpartition("/")[2]
        names = tuple(dict.fromkeys((_UPLOAD.sub("", name), name)))
        yield LabelTrack(path, names, tuple(labels), single=len(tasks) == 1)


def _labels(path: Path, task: Mapping[str, Any], collector: LabelCollector) -> Iterator[Label]:
    """Yield the labels of a task; TypeError and the like for another structure."""
    for number, value in enumerate(_values(path, task, collector), 1):
        spot = f"task {task.get('id', 1)}, annotation {number}"
        classes: list[Any] = next((value[key] for key in _CLASSES if value.get(key)), [""])
        try:
            spans = _spans(path, value, collector)
        except (TypeError, KeyError, ValueError):
            collector.lose(path, spot, "no start or no end")
            continue
        if not spans:
            collector.warn("annotations without start and end, left out", f"{path}, {spot}")
        for start, end in spans:
            for name in classes:
                yield from collector.label(path, spot, start, end, str(name))


def _media(task: Mapping[str, Any]) -> str:
    """Return the address of the recording of a task; "" if there is none."""
    data = task.get("data", task)
    texts = data.values() if isinstance(data, dict) else ()
    return next((text for text in texts if isinstance(text, str) and "." in text), "")


def _values(
    path: Path, task: Mapping[str, Any], collector: LabelCollector
) -> Iterator[dict[str, Any]]:
    if "data" not in task:  # JSON-MIN
        lists = (value for value in task.values() if isinstance(value, list))
        yield from (entry for entries in lists for entry in entries if isinstance(entry, dict))
        return
    done = [note for note in task.get("annotations", ()) if not note.get("was_cancelled")]
    where = f"{path}, task {task.get('id', 1)}"
    if len(done) > 1:
        collector.warn("several annotations of one task, the first is taken", where)
    if not done and task.get("predictions"):
        collector.warn("nobody has annotated a task, its pre-annotations are taken", where)
        done = task["predictions"]
    for result in done[0].get("result", ()) if done else ():
        if isinstance(result.get("value"), dict):
            yield result["value"]


def _spans(
    path: Path, value: Mapping[str, Any], collector: LabelCollector
) -> list[tuple[float, float]]:
    """Return start and end, in seconds, of a value."""
    if value.get("ranges"):
        rate_hz = given_rate_hz(collector.columns, str(path))
        return [((r["start"] - 1) / rate_hz, r["end"] / rate_hz) for r in value["ranges"]]
    return (
        [(float(value["start"]), float(value["end"]))] if {"start", "end"} <= value.keys() else []
    )


def read_cvat(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the tracks of "CVAT for video 1.1" as one timeline: when each object is visible.

    Raises UsageError for frames of an unknown rate
    (``--columns fps=``), NoLabelsError for other XML.
    """
    root = read_xml(path)
    tracks = root.findall("track")
    if root.tag != "annotations" or not tracks:
        raise NoLabelsError("no tracks of CVAT for video", where=path)
    rate_hz = given_rate_hz(collector.columns, str(path))
    labels: list[Label] = []
    for track in tracks:
        spot = f"track {track.get('id')}"
        try:
            spans = list(_visible(track))
        except (TypeError, ValueError) as error:
            collector.lose(path, spot, f"a shape without a frame: {error}")
            continue
        for first, end in spans:
            times = first / rate_hz, end / rate_hz
            labels += collector.label(path, spot, *times, track.get("label", ""))
    name = root.findtext("meta//source") or root.findtext("meta//name") or ""
    yield LabelTrack(path, (name,) if name else (), tuple(labels))


def _visible(track: Element) -> Iterator[tuple[int, int]]:
    """Yield first frame and end of each stretch in which a track is visible."""
    first: int | None = None
    frame = -1
    for shape in track:
        if shape.get("frame") is None:
            continue
        frame = int(shape.get("frame", ""))
        if shape.get("outside") == "1":
            if first is not None:
                yield first, frame
            first = None
        elif first is None:
            first = frame
    if first is not None:
        yield first, frame + 1
