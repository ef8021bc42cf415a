"""Labels from subtitles: the text of a cue is the label, without a score after it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from costream.labels.intake import LabelCollector, LabelTrack, NoLabelsError
from costream.labels.recording import Label
from costream.labels.text import read_text

_ARROW = "-->"
_SCORE = re.compile(r"\s*\([0-9]+ ?%\)$")
_TAG = re.compile(r"<[^>]*>")
_PLACE = re.compile(r"\{\\[^}]*\}")  # SubRip: "{\an8}" is a screen position


def read_subtitles(path: Path, intake: LabelCollector) -> Iterator[LabelTrack]:
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
        told = _TAG.sub("", " ".join(_text(lines[number:])))
        told = html.unescape(told) if web else _PLACE.sub("", told)
        name = _SCORE.sub("", told.strip())
        labels += intake.label(path, f"line {number}", start.strip(), end, name)
    yield LabelTrack(path, (), tuple(labels))


def _text(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a cue, up to an empty line or the number and times of the next cue."""
    for line, after in pairwise((*lines, "")):
        if not line.strip() or _ARROW in line or (_ARROW in after and line.strip().isdecimal()):
            return
        yield line.strip()
