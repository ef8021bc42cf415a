"""Evaluation of object detectors on images and clips."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from costream.core.errors import SourceError, UsageError
from costream.evaluation.evaluate_settings import EvaluateSettings
from costream.evaluation.metric_charts import draw
from costream.evaluation.metric_tables import to_text
from costream.evaluation.object_metrics import measure
from costream.labels.clips_with_boxes import ClipWithBoxes, fit_boxes, read_boxes
from costream.runtime.stop import StopHandler
from kit.media import make_video
from kit.object_nets import LABELS, bright_model, write_model
from kit.program import costream
from kit.runs import evaluate

SIZE = (224, 160)
FRAMES = 12


def corners(k):
    """Where the square of frame k is."""
    return 20 + 8 * k, 40, 60 + 8 * k, 80


def square(k, size):
    picture = np.zeros((size[1], size[0], 3), np.uint8)
    x1, y1, x2, y2 = corners(k)
    picture[y1:y2, x1:x2] = 255
    return picture


def line(k, kind=1):
    x1, y1, x2, y2 = np.array(corners(k)) / np.tile(SIZE, 2)
    return f"{kind} {(x1 + x2) / 2} {(y1 + y2) / 2} {x2 - x1} {y2 - y1}\n"


def write_picture(path, k):
    path.parent.mkdir(parents=True, exist_ok=True)
    pattern = {"pattern": lambda _, size: square(k, size), "size": SIZE, "rate": 1}
    make_video(path, 1, codec="png", pixel_format="rgb24", fmt="image2", **pattern)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Three pictures and a video, with boxes as YOLO text and as COCO JSON."""
    folder = tmp_path_factory.mktemp("scene")
    labels = folder / "labels"
    (labels / "photos").mkdir(parents=True)
    (labels / "classes.txt").write_text("Person\ncar\nkite\n", "utf-8")
    for k in range(3):
        write_picture(folder / "data" / "photos" / f"{k}.png", k)
        text = line(k) + (line(k, 2) if k == 1 else "")
        (labels / "photos" / f"{k}.txt").write_text(text, "utf-8")
    make_video(
        folder / "data" / "street.mp4", FRAMES, size=SIZE, rate=10, pattern=square, keyframe_every=1
    )
    (labels / "street").mkdir()
    images, annotations = [], []
    for k in range(FRAMES):
        (labels / "street" / f"frame_{k:06d}.txt").write_text(line(k), "utf-8")
        image = {"file_name": f"street/{k}.png", "width": SIZE[0], "height": SIZE[1]}
        images.append({"id": k, "video_id": 7, "frame_id": k, **image})
        x1, y1, x2, y2 = corners(k)
        box = [x1, y1, x2 - x1, y2 - y1]
        annotations.append({"image_id": k, "category_id": 3, "bbox": box, "iscrowd": 0})
    images.append({"id": 99, "file_name": "photos/2.png"})
    annotations.append({"image_id": 99, "category_id": 3, "bbox": [0, 0, 9, 9], "iscrowd": 1})
    told = {"images": images, "annotations": annotations, "videos": [{"id": 7, "name": "street"}]}
    told["categories"] = [{"id": 3, "name": "car"}]
    (folder / "boxes.json").write_text(json.dumps(told), "utf-8")
    return folder


def measured(clips, **options):
    settings = EvaluateSettings(model="m", weights=None, data=None, **options)
    return measure(bright_model(), fit_boxes(clips, LABELS), settings, StopHandler())


def test_boxes_of_pictures_and_of_a_video(scene):
    clips = read_boxes(scene / "data", scene / "labels")
    assert [len(clip.frames) for clip in clips] == [1, 1, 1, FRAMES]
    marks = clips[3].frames[5]
    assert marks.labels == ("car",)
    assert marks.pixels(SIZE)[0].tolist() == pytest.approx(corners(5))


def test_coco_says_the_same_of_the_video(scene, caplog):
    video, picture = read_boxes(scene / "data", scene / "boxes.json")
    assert video.sources == (str(scene / "data" / "street.mp4"),)
    assert video.frames[5].pixels(SIZE)[0].tolist() == list(corners(5))
    assert picture.frames[0].labels == ()
    assert "1 crowd annotations are left out" in caplog.text


def test_boxes_of_every_format_are_scored(scene, caplog):
    for labels in (scene / "labels", scene / "boxes.json"):
        clips = [c for c in read_boxes(scene / "data", labels) if "street" in c.sources[0]]
        (row,) = measured(clips)["budgets"]
        assert row["pictures"] == FRAMES
        assert row["AP50"] == pytest.approx(1)
        assert row["classes"]["car"]["objects"] == FRAMES
    whole = measured(read_boxes(scene / "data", scene / "labels"))["budgets"][0]
    assert whole["pictures"] == FRAMES + 3
    assert "kite (1)" in caplog.text


def test_fewer_tokens_cost_less_and_each_number_has_a_row(scene):
    clips = read_boxes(scene / "data", scene / "boxes.json")[:1]
    result = {"data": "d", **measured(clips, tokens=(6, 20, None))}
    macs = [row["macs"] for row in result["budgets"]]
    assert macs == sorted(macs)
    assert macs[0] < macs[2]
    alike = [row["alike"] for row in result["budgets"]]
    assert alike[2] == 1
    assert max(alike) <= 1
    text = to_text(result)
    assert "AP50, 6 tokens" in text
    assert "boxes alike" in text
    assert "alike" not in measured(clips, tokens=(6, 20))["budgets"][0]
    assert draw(result).startswith(b"\x89PNG")


def test_intervals_are_over_groups(scene):
    picture = read_boxes(scene / "data", scene / "labels")[1]
    clips = [replace(picture, group=str(k)) for k in range(6)]
    assert measured(clips)["budgets"][0]["AP50_95"] is not None
    assert measured([*clips[:5], clips[0]])["budgets"][0]["AP50_95"] is None


def test_pictures_one_after_another_are_a_clip(scene, tmp_path):
    pictures = tuple(str(scene / "data" / "photos" / f"{k}.png") for k in range(3))
    frames = read_boxes(scene / "data", scene / "boxes.json")[0].frames
    clip = ClipWithBoxes(pictures, {k: frames[k] for k in range(3)})
    all_, few = measured([clip], tokens=(None, 6))["budgets"]
    assert all_["pictures"] == few["pictures"] == 3
    assert all_["AP50"] == pytest.approx(1)
    assert few["macs"] < all_["macs"]  # from the second picture on


def test_pictures_that_cannot_be_read_are_left_out_and_counted(scene, caplog):
    clips = read_boxes(scene / "data", scene / "labels")
    lost = replace(clips[0], sources=(str(scene / "labels" / "photos" / "0.txt"),))
    result = measured([clips[1], lost, clips[3]], tokens=(8, None))
    assert [row["pictures"] for row in result["budgets"]] == [FRAMES + 1] * 2
    assert (result["clips"], result["failed"]) == (2, 1)
    assert len([m for m in caplog.messages if "0.txt" in m]) == 1
    assert f"{FRAMES + 1} images (1 more cannot be read)" in to_text({"data": "d", **result})
    with pytest.raises(SourceError, match="no input can be read"):
        measured([lost, lost])
    with pytest.raises(SourceError, match=r"0\.txt"):
        measured([lost])


def test_mistakes_are_reported_by_file_and_line(scene, tmp_path):
    write_picture(tmp_path / "data" / "a.png", 0)
    labels = tmp_path / "labels"
    labels.mkdir()
    with pytest.raises(UsageError, match=r"no file of class names; put classes\.txt"):
        read_boxes(tmp_path / "data", labels)
    (labels / "classes.txt").write_text("car\n", "utf-8")
    with pytest.raises(UsageError, match="no boxes for any image or video"):
        read_boxes(tmp_path / "data", labels)
    for text in ("0 0.5 0.5 0.1\n", "0 0.5 0.5 0.1 wide\n", "3 0.5 0.5 0.1 0.1\n"):
        (labels / "a.txt").write_text("0 .5 .5 .1 .1\n" + text, "utf-8")
        with pytest.raises(UsageError, match=r"a\.txt, line 2: not 'class x y width height'"):
            read_boxes(tmp_path / "data", labels)
    (tmp_path / "boxes.json").write_text('{"images": 3}', "utf-8")
    with pytest.raises(UsageError, match="not a COCO JSON file"):
        read_boxes(tmp_path / "data", tmp_path / "boxes.json")
    with pytest.raises(UsageError, match="the model has none of the labels: car"):
        fit_boxes(read_boxes(scene / "data", scene / "boxes.json"), ("kite",))


@pytest.mark.long
def test_the_command(scene, tmp_path):
    weights = write_model(tmp_path / "tiny.safetensors")
    arguments = ("-m", weights, "--data", scene / "data", "--labels", scene / "labels")
    result = evaluate(*arguments, "--tokens", "20%,all")
    assert [row["tokens"] for row in result["budgets"]] == ["20%", None]
    assert [row["pictures"] for row in result["budgets"]] == [FRAMES + 3] * 2
    for more, told in (
        ((), "--labels: needed to evaluate an object detector (boxes)"),
        ((*arguments[4:], "--protocol", "tvseries"), "--protocol: applies to actions"),
    ):
        done = costream("evaluate", *arguments[:4], *more)
        assert done.returncode == 2
        assert told in done.stderr
