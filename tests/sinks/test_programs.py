"""Timelines for other programs are read by the programs' own libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from costream.core.records import Segment
from costream.sinks.registry import make_sinks, paths_for

# Of one tier or track, touching, with a pause, and with characters that the formats escape.
SEGMENTS = (
    Segment(0.0, 1.25, "walk", 0.9),
    Segment(1.25, 2.0, 'say "hi"; #1 = \\ [x]', 0.8),
    Segment(3.0, 3725.5, "lié <b>", 0.7),
)
TIMES = [(s.start_s, s.end_s, s.label) for s in SEGMENTS]


def file_of(format: str, folder: Path, run: Any) -> str:
    (sink,) = make_sinks([format], folder, "x")
    sink.open(run.header)
    for segment in SEGMENTS:
        sink.write(segment)
    sink.close(run.summary)
    return str(paths_for(format, folder, "x")[0])


def test_praat(run: Any, tmp_path: Path) -> None:
    parselmouth = pytest.importorskip("parselmouth")
    grid = parselmouth.read(file_of("textgrid", tmp_path, run))
    call = parselmouth.praat.call
    asked = ("Get start time of interval", "Get end time of interval", "Get label of interval")
    numbers = range(1, call(grid, "Get number of intervals", 1) + 1)
    found = [tuple(call(grid, question, 1, k) for question in asked) for k in numbers]
    assert [row for row in found if row[2]] == TIMES
    assert [row[:2] for row in found if not row[2]] == [(2.0, 3.0)]


def test_open_timeline_io(run: Any, tmp_path: Path) -> None:
    otio = pytest.importorskip("opentimelineio")
    timeline = otio.adapters.read_from_file(file_of("otio", tmp_path, run))
    (track,) = timeline.tracks
    clips = [item for item in track if isinstance(item, otio.schema.Clip)]
    spans = [(clip.source_range, clip.range_in_parent()) for clip in clips]
    for at in (0, 1):  # a clip lies in the track where it is in the source
        found = [(span[at].start_time, span[at].duration) for span in spans]
        assert [(a.to_seconds(), (a + b).to_seconds()) for a, b in found] == [t[:2] for t in TIMES]
    assert [clip.name for clip in clips] == [label for _, _, label in TIMES]


def test_cmx_3600(run: Any, tmp_path: Path) -> None:
    otio = pytest.importorskip("opentimelineio")
    pytest.importorskip("otio_cmx3600_adapter")
    timeline = otio.adapters.read_from_file(file_of("edl", tmp_path, run), rate=25)
    (track,) = timeline.tracks
    clips = [item for item in track if isinstance(item, otio.schema.Clip)]
    spans = [(clip.source_range.start_time, clip.source_range.duration) for clip in clips]
    found = [(a.to_seconds(), (a + b).to_seconds()) for a, b in spans]
    wanted = [(round(25 * a) / 25, round(25 * b) / 25) for a, b, _ in TIMES]
    assert np.allclose(found, wanted)
    assert [clip.markers[0].name for clip in clips] == [label for _, _, label in TIMES]


def test_ffmpeg(run: Any, tmp_path: Path) -> None:
    with av.open(file_of("ffmetadata", tmp_path, run), format="ffmetadata") as container:
        chapters = container.chapters()
    found = [(c["start"] * c["time_base"], c["end"] * c["time_base"]) for c in chapters]
    assert found == [times[:2] for times in TIMES]
    assert [c["metadata"]["title"] for c in chapters] == [label for _, _, label in TIMES]
