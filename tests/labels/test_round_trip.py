"""Timelines written by costream are read back in every format."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from costream.core.records import Segment
from costream.core.spelling import composed
from costream.labels.reading import read_recordings
from costream.sinks.registry import FORMATS

TIMELINES = sorted(set(FORMATS) - {"chapters", "coco", "joints", "lines", "mp4", "table"})
# Seconds that a time may be off, beside the half microsecond of every timeline.
FRAME_S = 1 / 25  # of editors' time codes; segments may be shorter
PRECISION_S = {
    **dict.fromkeys(("srt", "vtt", "eaf", "ffmetadata"), 5e-4),
    "otio": 1e-3,
    "edl": 0.75 * FRAME_S,
    "rttm": 5e-7,
    "textgrid": 5e-7,
}
WHOLE = {"jsonl", "json"}  # carry every character

# Words of any characters that files may hold; XML has no place for some of them.
words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp", "Cn", "Co")),
    min_size=1,
    max_size=8,
)
labels = st.lists(words, min_size=1, max_size=3).map(" ".join)
odd = st.sampled_from(["a<b>", "wait -->", "x & y", 'say "hi", you', "50 (3 %)", "{b}", "=1"])


@st.composite
def timelines(draw) -> list[Segment]:
    """Segments that do not overlap and are longer than any rounding."""
    at, out = 0.0, []
    for _ in range(draw(st.integers(0, 6))):
        start_s = at + draw(st.floats(0, 4000, allow_subnormal=False))
        at = start_s + draw(st.floats(0.01, 4000))
        label = draw(labels | odd)
        out.append(Segment(start_s, at, label, draw(st.floats(0, 1))))
    return out


def carried(format: str, label: str) -> str:
    """Return what is left of a label."""
    if format in WHOLE or format == "csv":
        return label
    label = " ".join(label.split())
    if format == "srt":
        return label.replace("-->", "→").replace("<", "‹").replace(">", "›")
    return label.replace(" ", "_") if format == "rttm" else label


@pytest.mark.parametrize("format", TIMELINES)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(segments=timelines())
@example(segments=[])
@example(segments=[Segment(k / 3, (k + 1) / 3, f"label {k % 3}", 0.5) for k in range(100)])
def test_a_timeline_comes_back(format, written, tmp_path_factory, segments) -> None:
    folder: Path = tmp_path_factory.mktemp("out")
    written([format], folder, "clip ä.mp4", segments)
    (recording,) = read_recordings(None, folder)
    assert recording.whole
    assert recording.source == "clip ä.mp4"
    assert len(recording.labels) == len(segments)
    for label, segment in zip(recording.labels, segments, strict=True):
        precision_s = PRECISION_S.get(format, 0.0) + 5e-7 + 1e-9
        assert abs(label.start_s - segment.start_s) <= precision_s
        assert abs(label.end_s - segment.end_s) <= 2 * precision_s
        assert label.label == composed(carried(format, segment.label))
        assert label.where.startswith(str(folder))


@pytest.mark.parametrize("format", ["jsonl", "json", "csv"])
def test_labels_keep_blanks_within(format, written, tmp_path) -> None:
    written([format], tmp_path, "a.mp4", [Segment(0, 1, "stand\nup  and\tdown", 0.5)])
    (recording,) = read_recordings(None, tmp_path)
    assert recording.labels[0].label == "stand\nup  and\tdown"


def test_chapters_come_back_in_seconds_with_their_pauses(written, tmp_path) -> None:
    segments = [Segment(3.2, 6.9, "walk", 0.9), Segment(6.9, 8.0, "sit", 0.9)]
    written(["chapters"], tmp_path, "a.mp4", segments)
    (recording,) = read_recordings(None, tmp_path)
    assert [(label.start_s, label.end_s, label.label) for label in recording.labels] == [
        *((0, 3, "background"), (3, 7, "walk"), (7, 8, "sit"), (8, None, "background"))
    ]
