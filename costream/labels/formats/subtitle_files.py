"""Labels from subtitles: SubRip (srt) and WebVTT (vtt)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, read_text
from costream.labels.recording import Label

_ARROW = "-->"
_SCORE = re.compile(r"\s*\([0-9]+ ?%\)$")
_TAG = re.compile(r"<[^>]*>")
_PLACE = re.compile(r"\{\\[^}]*\}")  # SubRip: "{\an8}" is a screen position


def read_subtitles(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the cues of a SubRip (srt) or WebVTT (vtt) file as a timeline."""
    text = read_text(path)
    web = text.startswith("WEBVTT")
    lines = text.split("\n")
    labels: list[Label] = []
    if text.strip() and not web and _ARROW not in text:
        raise NoLabelsError("no subtitles", where=path)
    for number, line in enumerate(lines, 1):
        start, arrow, rest = line.partition(_ARROW)
        if not arrow:
            continue
        end = (rest.split() or ["no time"])[0]  # in WebVTT, cue settings may follow
        text = _TAG.sub("", " ".join(_text(lines[number:])))
        text = html.unescape(text) if web else _PLACE.sub("", text)
        name = _SCORE.sub("", text.strip())
        labels += collector.label(path, f"line {number}", start.strip(), end, name)
    yield LabelTrack(path, (), tuple(labels))


def _text(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a cue, up to an empty line or the number and times of the next cue."""
    for line, after in pairwise((*lines, "")):
        if not line.strip() or _ARROW in line or (_ARROW in after and line.strip().isdecimal()):
            return
        yield line.strip()
