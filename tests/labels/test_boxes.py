"""Boxes of images and clips as annotation tools write them; media are not opened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from costream.core.errors import UsageError
from costream.labels.clips_with_boxes import fit_boxes, read_boxes


@pytest.fixture
def data(tmp_path):
    """A clip and two pictures, which are empty files."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("clip.mp4", "a.png", "b.png"):
        (folder / name).touch()
    return folder


def coco(path, images, boxes, **more):
    """Write boxes [image id, box]; images have ids from 1."""
    told: dict[str, Any] = {"categories": [{"id": 1, "name": "car"}], **more}
    told["images"] = [{"id": k, **image} for k, image in enumerate(images, 1)]
    rows = [{"image_id": k, "category_id": 1, "bbox": box} for k, box in boxes]
    told["annotations"] = rows
    path.write_text(json.dumps(told), "utf-8")
    return path


def frames(clip):
    return {k: marks.boxes.tolist() for k, marks in clip.frames.items()}


def test_images_of_a_single_video_are_its_frames(data, tmp_path):
    """As CVAT exports a video: by their names alone."""
    names = [{"file_name": f"images/frame_{k:06d}.PNG"} for k in (12, 7)]
    path = coco(tmp_path / "boxes.json", names, [(1, [1, 2, 3, 4]), (1, [5, 5, 5, 5])])
    (clip,) = read_boxes(data / "clip.mp4", path)
    assert clip.sources == (str(data / "clip.mp4"),)
    assert frames(clip) == {7: [], 12: [[1, 2, 4, 6], [5, 5, 10, 10]]}
    names = [*names, {"file_name": "frame_12.PNG"}]
    with pytest.raises(UsageError, match=r"clip\.mp4: two images have one frame number"):
        read_boxes(data / "clip.mp4", coco(path, names, []))
    with pytest.raises(UsageError, match=r"json, x\.png: its name does not end in a frame number"):
        read_boxes(data / "clip.mp4", coco(path, [{"file_name": "x.png"}], []))


def test_a_folder_of_files_is_as_one(data, tmp_path):
    """As ``batch -f coco,json`` leaves it: of each video a file that is called as it."""
    (data / "other.mp4").touch()
    labels = tmp_path / "labels"
    labels.mkdir()
    (labels / "clip.mp4.json").write_text("{}", "utf-8")
    images = [{"file_name": "frame_000003.PNG"}]
    for name in ("clip.mp4", "other.mp4"):
        coco(labels / f"{name}.coco.json", images, [(1, [1, 2, 3, 4])])
    clips = read_boxes(data, labels)
    assert [clip.sources for clip in clips] == [
        (str(data / "clip.mp4"),), (str(data / "other.mp4"),)]  # fmt: skip
    assert [frames(clip) for clip in clips] == [{3: [[1, 2, 4, 6]]}] * 2


def test_text_files_of_a_single_video(data, tmp_path):
    labels = tmp_path / "obj_train_data"
    labels.mkdir()
    (labels / "classes.txt").write_text("car\n", "utf-8")
    (labels / "frame_000012.txt").write_text("0 .5 .5 .5 .5\n", "utf-8")
    assert [frames(c) for c in read_boxes(data / "clip.mp4", labels)] == [
        {12: [[0.25, 0.25, 0.75, 0.75]]}
    ]
    with pytest.raises(UsageError, match="no boxes for any image or video"):
        read_boxes(data, labels)  # of which clip, it does not say
    (labels / "12.txt").touch()
    with pytest.raises(UsageError, match="two files have one frame number"):
        read_boxes(data / "clip.mp4", labels)


def test_groups_are_what_images_and_videos_say(data, tmp_path):
    videos = [{"id": 1, "name": "clip.mp4", "camera": "door"}]
    images = [
        {"file_name": "1.png", "video_id": 1, "frame_id": 1, "day": "tuesday"},
        {"file_name": "0.png", "video_id": 1, "frame_id": 0, "day": "monday"},
        {"file_name": "a.png", "camera": 3, "day": "monday"},
    ]
    path = coco(tmp_path / "boxes.json", images, [(1, [0, 0, 1, 1])], videos=videos)

    def groups(key):
        return [clip.group for clip in read_boxes(data, path, key)]

    assert groups(None) == ["", ""]
    assert groups("camera") == ["door", "3"]
    assert groups("day") == ["monday", "monday"]
    kept = fit_boxes(read_boxes(data, path, "camera"), ("Car",))
    assert [clip.group for clip in kept] == ["door", "3"]
    with pytest.raises(UsageError, match=r"boxes\.json: 0\.png has no 'person'"):
        groups("person")
    alone = read_boxes(data / "a.png", coco(path, images[2:], []), "camera")
    assert [(clip.sources, clip.group) for clip in alone] == [((str(data / "a.png"),), "3")]


def test_text_files_have_no_groups(data, tmp_path):
    with pytest.raises(UsageError, match="--group: requires COCO JSON; text files have no columns"):
        read_boxes(data, tmp_path, "camera")


def test_boxes_without_an_area_are_left_out(data, tmp_path, caplog):
    boxes = [(1, [0, 0, 1, 1]), (2, [5, 5, 0, 3]), (2, [5, 5, 3, -1])]
    images = [{"file_name": "a.png"}, {"file_name": "b.png"}]
    path = coco(tmp_path / "boxes.json", images, boxes)
    assert [len(clip.frames[0].labels) for clip in read_boxes(data, path)] == [1, 0]
    assert "left out: 2, the first in" in caplog.text
    assert "boxes.json, b.png" in caplog.text
    caplog.clear()
    (data / "classes.txt").write_text("car\n", "utf-8")
    (data / "a.txt").write_text("0 .5 .5 .1 .1\n0 .5 .5 .1 0\n", "utf-8")
    (data / "b.txt").write_text("0 .5 .5 0 .1\n", "utf-8")
    clips = read_boxes(data, data)
    assert [len(clip.frames[0].labels) for clip in clips] == [1, 0]
    assert caplog.text.count("left out: 2, the first in") == 1
    assert "a.txt, line 2" in caplog.text


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_not_finite(number, data, tmp_path):
    path = coco(tmp_path / "boxes.json", [{"file_name": "a.png"}], [(1, [0, 0, 1, 1234])])
    path.write_text(path.read_text("utf-8").replace("1234", number), "utf-8")
    with pytest.raises(UsageError, match=r"boxes\.json, a\.png: .*a number is not finite"):
        read_boxes(data, path)
    (data / "classes.txt").write_text("car\n", "utf-8")
    (data / "a.txt").write_text(f"0 .5 .5 .1 .1\n0 .5 .5 {number} .1\n", "utf-8")
    with pytest.raises(UsageError, match=r"a\.txt, line 2: .*a number is not finite"):
        read_boxes(data, data)


@pytest.mark.parametrize("file", ["classes.txt", "a.txt", "boxes.json"])
def test_text_that_is_not_utf_8(file, data, tmp_path):
    (data / "classes.txt").write_text("car\n", "utf-8")
    (data / file).write_bytes("Führerhaus\n".encode("latin-1"))
    with pytest.raises(UsageError, match=rf"{file}: is not text in UTF-8"):
        read_boxes(data, data / file if file == "boxes.json" else data)
