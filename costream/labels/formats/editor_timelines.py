"""Labels from timelines of video editors: CMX 3600 edit decision lists, and OpenTimelineIO."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, integer, read_text
from costream.labels.formats.label_headings import given_rate_hz, rate_of
from costream.labels.recording import Label

_CODE = r"(\d\d+:\d\d:\d\d[:;.]\d\d+)"
_EVENT = re.compile(rf"\d+\s+\S+\s+\S+\s+\S+\s+(?:\d+\s+)?{_CODE}\s+{_CODE}\s+{_CODE}\s+{_CODE}\s*")
_CUT = re.compile(r"(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+([0-3])")  # of MPlayer, in seconds
_ACTIONS = ("cut", "mute", "scene", "commercial")
_TITLE_RATE = re.compile(r"([\d.]+) fps\s*\Z")  # as costream writes titles
_CLIP_NAME = re.compile(r"\*\s*FROM CLIP NAME:\s*(.*)", re.IGNORECASE)
_MARKER = re.compile(rf"\*\s*LOC:\s*{_CODE}\s+\S+\s*(.*)", re.IGNORECASE)


def read_edl(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the pieces of each clip; the label is that of the piece's marker (LOC).

    A list of MPlayer, Kodi or Comskip (start, end, number of the action) is read too. Times are
    those in the source. Their rate is ``--columns fps=``, or in the title. Raises NoLabelsError for
    another text, UsageError for an unknown rate.
    """
    lines = [line.strip() for line in read_text(path).split("\n")]
    rows = [match.groups() for match in map(_CUT.fullmatch, filter(None, lines)) if match]
    if rows and len(rows) == sum(map(bool, lines)):
        yield LabelTrack(path, (), tuple(_cuts(path, rows, collector)))
        return
    events = [(number, match) for number, line in enumerate(lines) if (match := _event(line))]
    if not events and not any(line.startswith("TITLE:") for line in lines):
        raise NoLabelsError("no edit decision list", where=path)
    titles = (_TITLE_RATE.search(line) for line in lines if line.startswith("TITLE:"))
    stated = next((match[1] for match in titles if match), "")
    rate_hz = 1.0
    if events:
        rate_hz = (not collector.columns.get("fps") and rate_of(stated)) or given_rate_hz(
            collector.columns, str(path)
        )
    found: dict[str, list[Label]] = {}
    ends = [number for number, _ in events[1:]] + [len(lines)]
    for (number, event), end in zip(events, ends, strict=False):
        notes = lines[number + 1 : end]
        clip = next((match[1] for match in map(_CLIP_NAME.fullmatch, notes) if match), "")
        markers = [match[2] for match in map(_MARKER.fullmatch, notes) if match]
        if len(markers) > 1:
            what = "several markers in one piece, the first is taken"
            collector.warn(what, f"{path}, line {number + 1}")
        label = next(iter(markers), "")
        start, stop = (frame_number(code, rate_hz) / rate_hz for code in event.groups()[:2])
        labels = found.setdefault(clip, [])
        labels += collector.label(path, f"line {number + 1}", start, stop, label)
    yield from _tracks(path, found, collector)


def _cuts(
    path: Path, rows: Sequence[tuple[str, ...]], collector: LabelCollector
) -> Iterator[Label]:
    """Yield the labels of an edit list of MPlayer, Kodi and Comskip: start, end, action."""
    for number, (start, end, action) in enumerate(rows, 1):
        yield from collector.label(path, f"line {number}", start, end, _ACTIONS[int(action)])


def _event(line: str) -> re.Match[str] | None:
    return _EVENT.fullmatch(line)


def frame_number(code: str, rate_hz: float) -> int:
    """Return the number of a frame, from its time code; with ";" it is drop-frame (SMPTE 12M)."""
    hours, minutes, seconds, frame = map(int, re.split("[:;.]", code))
    base = max(1, round(rate_hz))
    minutes += 60 * hours
    number = base * (60 * minutes + seconds) + frame
    if ";" in code:
        number -= round(base / 15) * (minutes - minutes // 10)
    return number


def read_otio(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the clips of each recording, at their times in it; a part is a track.

    The label is the name of a clip, or of the markers in it if there are any. Raises NoLabelsError
    for other JSON.
    """
    try:
        document = json.loads(read_text(path), parse_int=integer)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot be read as JSON ({error})", where=path) from error
    if not isinstance(document, dict) or not _is(document, "Timeline"):
        raise NoLabelsError("no timeline of OpenTimelineIO", where=path)
    found: dict[str, list[Label]] = {}
    try:
        for track in document["tracks"]["children"]:
            if not collector.wants(str(track.get("name") or "")):
                continue
            for number, clip in enumerate(track.get("children") or (), 1):
                if _is(clip, "Clip"):
                    spot = f"track {track.get('name')!r}, item {number}"
                    labels = found.setdefault(_recording(clip), [])
                    labels += _labels(path, spot, clip, collector)
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UsageError(f"a damaged timeline ({error!r:.60})", where=path) from error
    yield from _tracks(path, found, collector, has_parts=True)


def _is(item: Mapping[str, Any], schema: str) -> bool:
    return str(item.get("OTIO_SCHEMA", "")).startswith(f"{schema}.")


def _recording(clip: Mapping[str, Any]) -> str:
    """Return the name of the file of a clip; "" if it has none."""
    references = clip.get("media_references") or {}
    medium = references.get(clip.get("active_media_reference_key")) or clip.get("media_reference")
    return unquote(urlparse(str((medium or {}).get("target_url") or "")).path).rpartition("/")[2]


def _labels(
    path: Path, spot: str, clip: Mapping[str, Any], collector: LabelCollector
) -> Iterator[Label]:
    spans = [
        (marker.get("name"), marker["marked_range"])
        for marker in clip.get("markers") or ()
        if _seconds(marker["marked_range"]["duration"])
    ]
    for name, span in spans or [(clip.get("name"), clip["source_range"])]:
        start_s = _seconds(span["start_time"])
        end_s = start_s + _seconds(span["duration"])
        yield from collector.label(path, spot, start_s, end_s, str(name or ""))


def _seconds(time: Mapping[str, Any]) -> float:
    return float(time["value"]) / float(time["rate"])


def _tracks(
    path: Path,
    found: dict[str, list[Label]],
    collector: LabelCollector,
    *,
    has_parts: bool = False,
) -> Iterator[LabelTrack]:
    if len(found) > 1:
        for label in found.pop("", ()):
            collector.lose(path, label.where.rpartition(", ")[2], "no recording")
    single = len(found) < 2
    for name, labels in (found or {"": []}).items():
        names = (name,) if name else ()
        yield LabelTrack(path, names, tuple(labels), single=single, has_parts=has_parts)
