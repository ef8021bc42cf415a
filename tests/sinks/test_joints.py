"""Tables of joints: what is written is what is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costream.core.layouts import MEDIAPIPE_33, Layout, find_layout
from costream.core.records import Picture, SkeletonFrame, VideoFrame
from costream.sinks.atomic import AtomicFile
from costream.sinks.joints import JointTable
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from kit.runs import rows


def skeletons(layout: Layout, axes: int, count: int = 8) -> list[SkeletonFrame]:
    """Return persons who are numbered 3 and 5, of whom the second comes in the third frame."""
    rng, shape = np.random.default_rng(axes), (2, len(layout.joints))
    out = []
    for i in range(count):
        joints = 10 + rng.random((*shape, axes)).astype(np.float32)
        scores = np.full(shape, 0.9, np.float32)
        scores[1] *= i >= 2
        places = rng.random((*shape, 2)).astype(np.float32)
        about = (i, i / 10, joints, scores, layout)
        out.append(SkeletonFrame(*about, places=places, persons=(3, 5 if i >= 2 else 0)))
    return out


def written(path: Path, frames: list[SkeletonFrame], width: int = 200) -> Path:
    sink = JointTable(AtomicFile(path))
    sink.open(None)  # type: ignore[arg-type]
    for frame in frames:
        pixels = np.zeros((100, width, 3), np.uint8)
        item = VideoFrame(2 * frame.i, frame.time_s, 0, pixels.copy)
        sink.draw(Picture(frame.time_s, item, frame))
    sink.draw(Picture(9.0, item, None))
    sink.close(None)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("layout", "axes"), [("mediapipe-33", 3), ("mediapipe-33", 2), ("body-15", 3)]
)
def test_a_table_is_read_again(layout: str, axes: int, tmp_path: Path) -> None:
    frames = skeletons(find_layout(layout), axes)
    path = written(tmp_path / "clip.joints.csv", frames)
    source = open_source(str(path), SourceOptions(persons=2))
    info = source.open()
    assert (info.layout, info.axes) == (layout, axes)
    read = [item for item in source.items() if isinstance(item, SkeletonFrame)]
    source.close()
    assert [item.time_s for item in read] == [frame.time_s for frame in frames]
    for item, frame in zip(read, frames, strict=True):
        there = frame.scores.any(1)
        assert item.scores.any(1).tolist() == there.tolist()
        np.testing.assert_allclose(item.joints[there], frame.joints[there], atol=1e-4)


def test_persons_have_their_numbers_and_places_in_pixels(tmp_path: Path) -> None:
    frames = skeletons(MEDIAPIPE_33, 3, 3)
    table = rows(written(tmp_path / "clip.joints.csv", frames))
    assert [(row["frame"], row["person"]) for row in table] == [
        ("0", "3"),
        ("2", "3"),
        ("4", "3"),
        ("4", "5"),
    ]
    assert frames[2].places is not None
    place = frames[2].places[1, MEDIAPIPE_33.joints.index("left wrist")]
    found = float(table[3]["left_wrist_column"]), float(table[3]["left_wrist_row"])
    assert found == pytest.approx((200 * place[0], 100 * place[1]), abs=1e-3)
