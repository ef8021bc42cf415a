"""Timeline for video editors: CMX 3600 edit decision list, and OpenTimelineIO."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from costream.core.formatting import named
from costream.core.records import Header, Segment, dumps
from costream.sinks.base import output_file
from costream.sinks.labels import one_line, source_name
from costream.sinks.stored_timelines import Timelines, TimelineSink

EDL_RATE_HZ = 25.0  # where the source does not have a frame rate
_MS_HZ = 1000.0  # times of OpenTimelineIO are milliseconds then
_RECORD_S = 3600  # an edit list begins at 01:00:00:00, as is usual


@output_file("edl", about="timeline as a CMX 3600 edit decision list", order=9)
class EditDecisionList(TimelineSink):
    """The pieces of the source, one after the other; a marker (LOC) has the label of each.

    Time codes are not drop-frame and count from the beginning of the source. The title has the
    frame rate, for which the format has no field.
    """

    def _write_timelines(self, timelines: Timelines) -> None:
        header = self._header
        rate_hz = header.frame_rate_hz or EDL_RATE_HZ
        name, kind = one_line(source_name(header)), "A" if header.kind == "audio" else "V"
        self._out.write(f"TITLE: {name} {rate_hz:.6g} fps\nFCM: NON-DROP FRAME\n")
        at = _RECORD_S * round(rate_hz)
        for number, segment in enumerate(timelines.merged(), 1):
            start, end = _frames(segment, rate_hz)
            places = (start, end, at, at + end - start)
            codes = " ".join(_time_code(place, round(rate_hz)) for place in places)
            self._out.write(
                f"\n{number:03}  AX       {kind:<5} C        {codes}\n* FROM CLIP NAME: {name}\n"
                f"* LOC: {_time_code(at, round(rate_hz))} RED     {one_line(named(segment))}\n"
            )
            at += end - start


@output_file("otio", about="timeline as OpenTimelineIO, for video editors", order=9)
class OpenTimeline(TimelineSink):
    """A track for each head or person, or each label: clips of the source at their times, and gaps.

    The document is as OpenTimelineIO 0.15 and later write it, in constant memory.
    """

    def _write_timelines(self, timelines: Timelines) -> None:
        header, first = self._header, True
        rate_hz = header.frame_rate_hz or _MS_HZ
        top = {"OTIO_SCHEMA": "Timeline.1", "name": one_line(source_name(header))}
        self._out.write(f'{dumps(top)[:-1]},\n"tracks": {{"OTIO_SCHEMA": "Stack.1", "children": [')
        for head in timelines.heads:
            track = {
                "OTIO_SCHEMA": "Track.1",
                "kind": "Audio" if header.kind == "audio" else "Video",
                "name": one_line(head or header.model),
            }
            self._out.write(f'{"" if first else ","}\n{dumps(track)[:-1]}, "children": [')
            mark, first = "\n", False
            for item in self._items(timelines.of(head), rate_hz):
                self._out.write(mark + dumps(item))
                mark = ",\n"
            self._out.write("]}")
        self._out.write("]}}\n")

    def _items(self, segments: Iterable[Segment], rate_hz: float) -> Iterator[dict[str, Any]]:
        """Yield the clips and gaps of a track."""
        at, target = 0, _url(self._header)
        for segment in segments:
            start, end = _frames(segment, rate_hz)
            start = max(start, at)
            end = max(end, start + 1)
            if start > at:
                yield {"OTIO_SCHEMA": "Gap.1", "source_range": _range(0, start - at, rate_hz)}
            yield _clip(segment, _range(start, end, rate_hz), target)
            at = end


def _clip(segment: Segment, span: dict[str, Any], target: str) -> dict[str, Any]:
    about: dict[str, Any] = {"score": round(segment.score, 6)}
    about = about if math.isfinite(segment.score) else {}
    media = {"OTIO_SCHEMA": "ExternalReference.1", "target_url": target}
    return {
        "OTIO_SCHEMA": "Clip.2",
        "name": one_line(segment.label),
        "source_range": span,
        "media_references": {"DEFAULT_MEDIA": media},
        "active_media_reference_key": "DEFAULT_MEDIA",
        "metadata": {"costream": about},
    }


def _range(start: int, end: int, rate_hz: float) -> dict[str, Any]:
    """Return the frames from ``start`` to before ``end`` as a TimeRange."""
    of = {"OTIO_SCHEMA": "RationalTime.1", "rate": rate_hz}
    times = {"start_time": {**of, "value": start}, "duration": {**of, "value": end - start}}
    return {"OTIO_SCHEMA": "TimeRange.1", **times}


def _url(header: Header) -> str:
    path = Path(header.source)
    return path.absolute().as_uri() if os.path.isfile(path) else header.source


def _frames(segment: Segment, rate_hz: float) -> tuple[int, int]:
    """Return the first frame of a segment and the frame after it; at least one frame."""
    start = max(0, round(segment.start_s * rate_hz))
    return start, max(start + 1, round(segment.end_s * rate_hz))


def _time_code(frame: int, base: int) -> str:
    seconds, frame = divmod(frame, base)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}:{frame:02}"
