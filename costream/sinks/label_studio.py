"""Timeline as a task of Label Studio with pre-annotations."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from costream.core.records import Header, Record, Segment, Summary, dumps
from costream.sinks.atomic import TextOutput
from costream.sinks.base import TextSink, output_file

# Address of a file below the folder that Label Studio serves (LOCAL_FILES_DOCUMENT_ROOT).
LOCAL = "/data/local-files/?d="


@output_file(
    "labelstudio.json",
    format="label-studio",
    about="timeline as a Label Studio task with pre-annotations",
    order=9,
)
class LabelStudio(TextSink):
    """A list of one task, whose ``predictions`` are regions of ``<Labels name="label">``.

    Regions have seconds, of ``<Audio name="audio">``, which shows the sound of a video, too.
    """

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._count = 0

    def open(self, header: Header) -> None:
        """Write everything up to the first region."""
        super().open(header)
        data = {"video" if header.kind == "video" else "audio": _address(header.source)}
        about = f'"model_version": {dumps(header.model)}'
        text = f'[{{"data": {dumps(data)},\n"predictions": [{{{about},\n"result": ['
        self._out.write(text, flush=True)

    def write(self, record: Record) -> None:
        """Write a segment; other records are ignored."""
        if isinstance(record, Segment):
            self._count += 1
            mark = "\n" if self._count == 1 else ",\n"
            self._out.write(mark + dumps(_region(record, self._count)), flush=True)

    def close(self, summary: Summary) -> None:
        """Write the end, and finish."""
        self._out.write("\n]}]}]\n")
        super().close(summary)


def _address(source: str) -> str:
    """Return the address of a file for Label Studio; other sources as they are."""
    if not os.path.isfile(source) and "://" in source:
        return source
    path = Path(source).as_posix().removeprefix("/")
    return LOCAL + quote(path, errors="replace")


def _region(segment: Segment, number: int) -> dict[str, Any]:
    times = {"start": round(segment.start_s, 6), "end": round(segment.end_s, 6)}
    region: dict[str, Any] = {
        "id": f"segment{number}",
        "from_name": "label",
        "to_name": "audio",
        "type": "labels",
        "value": {**times, "channel": 0, "labels": [" ".join(segment.label.split())]},
    }
    if math.isfinite(segment.score):
        region["score"] = round(segment.score, 6)
    person = None if segment.person is None else f"person {segment.person}"
    notes = [note for note in (segment.model, person) if note]
    return region | ({"meta": {"text": notes}} if notes else {})
