"""COCO JSON of the objects in a video: what the conformance suite does not reach."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.core.records import IMAGE_SUFFIXES, Box, Objects, Picture, VideoFrame
from costream.labels.clips_with_boxes import read_boxes
from costream.sinks.base import PictureSink
from costream.sinks.registry import is_complete, make_sinks

SIZE = (640, 480)


def unread() -> Any:
    raise AssertionError("the pixels are not needed")


def opened(folder: Path, header: Any, name: str = "clip.mp4") -> PictureSink:
    (sink,) = make_sinks(["coco"], folder, name)
    assert isinstance(sink, PictureSink)
    sink.open(header)
    return sink


def step(
    sink: PictureSink, i: int, frame: int, *boxes: Box, size: tuple[int, int] | None = SIZE
) -> None:
    rgb = unread if size else np.zeros((48, 64, 3), np.uint8).copy
    sink.write(Objects(i, i / 10, frame, None, boxes))
    sink.draw(Picture(i / 10, VideoFrame(frame, i / 10, None, rgb, size=size), None))


def document(folder: Path, name: str = "clip.mp4") -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / f"{name}.coco.json").read_text("utf-8"))
    return told


def random_boxes(rng: np.random.Generator, labels: tuple[str, ...]) -> list[Box]:
    corners = rng.uniform(0, 200, (int(rng.integers(0, 6)), 4)).tolist()
    return [
        Box(x, y, x + 1 + w, y + 1 + h, 0.5, labels[int(rng.integers(len(labels)))])
        for x, y, w, h in corners
    ]


def test_by_hand(run_of_objects: Any, tmp_path: Path) -> None:
    """A step at 30 Hz of a video with 20 frames a second sees one of them again."""
    header = replace(run_of_objects.header, source="in/clip.mp4")
    sink = opened(tmp_path, header)
    step(sink, 0, 0, Box(1.5, 2, 11.5, 7, 0.75, "<dog>", 4))
    step(sink, 1, 0, Box(0, 0, 9, 9, 0.5, "person"))
    step(sink, 2, 1, size=None)
    sink.close(run_of_objects.summary)
    told = document(tmp_path)
    assert told["info"]["description"] == f"costream {header.version}"
    assert told["info"]["weights_sha256"] == header.weights_sha256
    assert told["categories"][2] == {"id": 3, "name": "<dog>", "supercategory": ""}
    assert told["videos"] == [{"id": 1, "name": "clip.mp4", "file_name": "clip.mp4"}]
    of_video = {"video_id": 1, "frame_id": 0}
    assert told["images"] == [
        {"id": 1, "file_name": "frame_000000.PNG", "width": 640, "height": 480, **of_video},
        {"id": 2, "file_name": "frame_000001.PNG", "width": 64, "height": 48}
        | {**of_video, "frame_id": 1},
    ]
    assert told["annotations"] == [
        {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1.5, 2, 10, 5], "area": 50}
        | {"segmentation": [], "iscrowd": 0, "score": 0.75, "track_id": 4}
    ]


def test_boxes_come_back(run_of_objects: Any, tmp_path: Path) -> None:
    """Of an interrupted run too: what it had seen is there."""
    source = tmp_path / "clip.mp4"
    source.touch()
    header = replace(run_of_objects.header, source=str(source))
    rng = np.random.default_rng(5)
    steps = {3 * i: random_boxes(rng, header.labels) for i in range(20)}
    sink = opened(tmp_path, header)
    for i, (frame, boxes) in enumerate(steps.items()):
        step(sink, i, frame, *boxes)
    sink.write(Objects(20, 2.0, 60, None, (Box(0, 0, 1, 1, 0.5, "person"),)))  # and then: Ctrl-C
    sink.close(run_of_objects.cut_short().summary)
    (clip,) = read_boxes(source, tmp_path / "clip.mp4.coco.json")
    assert clip.sources == (str(source),)
    assert list(clip.frames) == list(steps)
    for frame, boxes in steps.items():
        marks = clip.frames[frame]
        assert marks.labels == tuple(box.label for box in boxes)
        corners = np.reshape([(b.x1, b.y1, b.x2, b.y2) for b in boxes], (-1, 4))
        assert np.abs(marks.pixels(SIZE) - corners).max(initial=0) < 2e-6


@pytest.mark.parametrize("ending", IMAGE_SUFFIXES)
def test_a_picture_is_not_a_video(ending: str, run_of_objects: Any, tmp_path: Path) -> None:
    source = tmp_path / f"photo{ending.upper()}"
    source.touch()
    sink = opened(tmp_path, replace(run_of_objects.header, source=str(source)), source.name)
    step(sink, 0, 0, Box(1, 2, 3, 5, 0.5, "person"))
    sink.close(run_of_objects.summary)
    told = document(tmp_path, source.name)
    assert "videos" not in told
    assert told["images"] == [{"id": 1, "file_name": source.name, "width": 640, "height": 480}]
    (clip,) = read_boxes(source, tmp_path / f"{source.name}.coco.json")
    assert clip.frames[0].boxes.tolist() == [[1, 2, 3, 5]]


def test_pictures_that_move_are_a_video(run_of_objects: Any, tmp_path: Path) -> None:
    sink = opened(tmp_path, replace(run_of_objects.header, source="moving.png"))
    step(sink, 0, 0)
    step(sink, 1, 1)
    sink.close(run_of_objects.summary)
    assert [image["frame_id"] for image in document(tmp_path)["images"]] == [0, 1]


def test_runs_that_find_no_objects_have_no_such_file(run: Any, tmp_path: Path) -> None:
    sink = opened(tmp_path, run.header)
    step(sink, 0, 0)
    sink.close(run.summary)
    assert not list(tmp_path.iterdir())
    assert not is_complete(["coco"], tmp_path, "clip.mp4")
