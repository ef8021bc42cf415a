"""Timeline as a project of BORIS, which its "Open project" and "Import observations" read."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from costream.core.records import Segment, dumps
from costream.sinks.base import output_file
from costream.sinks.elan import relative_path
from costream.sinks.labels import one_line, source_name
from costream.sinks.stored_timelines import Timelines, TimelineSink

_VERSION = "7.0"  # of the project format, of BORIS 7 to 9


@output_file("boris", about="timeline as a BORIS project", order=9)
class Boris(TimelineSink):
    """A project with one observation; each segment is the start and the stop of a state event.

    A head, or a person, is the subject; the comment of a start has the score.
    """

    def _write_timelines(self, timelines: Timelines) -> None:
        header = self._header
        self._out.write('{\n"time_format": "hh:mm:ss",\n"project_date": "1970-01-01T00:00:00",\n')
        name, file = one_line(source_name(header)) or "observation", self._media()
        project = {
            "project_name": name,
            "project_description": f"costream {header.version}, {header.model}",
            "project_format_version": _VERSION,
        }
        self._out.write("".join(f"{dumps(k)}: {dumps(v)},\n" for k, v in project.items()))
        self._out.write(f'"observations": {{\n{dumps(name)}: {{\n"events": [')
        labels, subjects = dict.fromkeys(map(one_line, header.labels)), dict[str, None]()
        mark, end_s = "\n", 0.0
        for head in timelines.heads:
            for segment in timelines.of(head):
                subject, label = _subject(segment), one_line(segment.label)
                labels[label], subjects[subject] = None, None
                end_s = max(end_s, segment.end_s)
                self._out.write(f"{mark}{_events(segment, subject, label)}")
                mark = ",\n"
        length_s = max(end_s, header.duration_s or 0.0)
        self._out.write(f"],\n{dumps(_about(file, length_s, header.frame_rate_hz))[1:]}\n}},\n")
        rest = {
            "subjects_conf": {
                str(k): {"key": "", "name": subject, "description": ""}
                for k, subject in enumerate(filter(None, subjects))
            },
            "behaviors_conf": {str(k): _behaviour(label) for k, label in enumerate(labels)},
            **{key: {} for key in ("independent_variables", "coding_map", "converters")},
            **{key: [] for key in ("behavioral_categories", "behaviors_coding_map")},
        }
        self._out.write(dumps(rest)[1:] + "\n")

    def _media(self) -> str:
        """Return the path of the recording, relative to the project if it is a file."""
        source = self._header.source
        near = relative_path(Path(source), self._out.path) if os.path.isfile(source) else None
        return near or source


def _subject(segment: Segment) -> str:
    person = None if segment.person is None else f"person {segment.person}"
    return " ".join(filter(None, (segment.model, person)))


def _events(segment: Segment, subject: str, label: str) -> str:
    """Return the two events of a segment: time, subject, behaviour, modifier, comment, frame."""
    comment = f"score {segment.score:.2f}" if math.isfinite(segment.score) else ""
    times_s = round(segment.start_s, 6), round(segment.end_s, 6)
    rows = zip(times_s, (comment, ""), strict=True)
    return ",\n".join(dumps([s, subject, label, "", about, "NA"]) for s, about in rows)


def _behaviour(label: str) -> dict[str, Any]:
    texts = ("key", "description", "category", "excluded", "coding map")
    return {"type": "State event", "code": label, "modifiers": {}, **dict.fromkeys(texts, "")}


def _about(file: str, length_s: float, frame_rate_hz: float | None) -> dict[str, Any]:
    """Return the observation without its events."""
    players = {str(k): [file] if k == 1 else [] for k in range(1, 9)}
    is_video = frame_rate_hz is not None
    media = {
        "length": {file: round(length_s, 6)},
        "fps": {file: frame_rate_hz or 0},
        "hasVideo": {file: is_video},
        "hasAudio": {file: not is_video},
    }
    return {
        "file": players,
        "type": "MEDIA",
        "date": "1970-01-01T00:00:00",
        "description": "",
        "time offset": 0.0,
        "observation time interval": [0, 0],
        "media_info": media,
        "independent_variables": {},
        "visualize_spectrogram": False,
        "close_behaviors_between_videos": False,
    }
