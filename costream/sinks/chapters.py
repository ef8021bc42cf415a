"""Timeline as chapters: text for descriptions of videos (YouTube), and metadata of FFmpeg."""

from __future__ import annotations

import math
import re

from costream.core.formatting import named
from costream.sinks.base import output_file
from costream.sinks.labels import one_line
from costream.sinks.stored_timelines import Timelines, TimelineSink

_SPECIAL = re.compile(r"([=;#\\])")  # of FFmpeg's metadata, escaped with a backslash


@output_file("chapters.txt", format="chapters", about="timeline as chapters of YouTube", order=9)
class Chapters(TimelineSink):
    """Lines ``0:03 label``, a chapter each, which lasts until the next.

    So pauses of a second or more are chapters too, called like the background.
    """

    def _write_timelines(self, timelines: Timelines) -> None:
        pause = one_line(self._header.background or "background")
        end_s, last_s = 0, -1
        for segment in timelines.merged():
            start_s = max(0, math.floor(segment.start_s + 0.5))
            if start_s > end_s:
                self._line(end_s, pause)
            if start_s != last_s or start_s > end_s:
                self._line(start_s, one_line(named(segment)))
            last_s = start_s
            end_s = max(end_s, start_s + 1, math.floor(segment.end_s + 0.5))
        if last_s < 0 or end_s < math.floor((self._header.duration_s or 0.0) + 0.5):
            self._line(end_s, pause)

    def _line(self, at_s: int, text: str) -> None:
        minutes, seconds = divmod(at_s, 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02}" if hours else f"{minutes}"
        self._out.write(f"{clock}:{seconds:02} {text}\n")


@output_file("ffmetadata", about="timeline as chapters for FFmpeg", order=9)
class FfmpegMetadata(TimelineSink):
    """FFMETADATA1 with a chapter for each segment, in order of their starts."""

    def _write_timelines(self, timelines: Timelines) -> None:
        self._out.write(";FFMETADATA1\n")
        for segment in timelines.merged():
            start_ms = max(0, round(1000 * segment.start_s))
            end_ms = max(start_ms + 1, round(1000 * segment.end_s))
            title = _SPECIAL.sub(r"\\\1", one_line(named(segment)))
            times = f"TIMEBASE=1/1000\nSTART={start_ms}\nEND={end_ms}"
            self._out.write(f"[CHAPTER]\n{times}\ntitle={title}\n")
