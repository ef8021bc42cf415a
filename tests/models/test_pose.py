"""Joints of persons in video: slots and numbers, crops, and the original network's numbers."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costream.core.errors import ModelError, UsageError
from costream.core.layouts import MEDIAPIPE_33
from costream.core.records import SkeletonFrame, VideoFrame
from costream.models.build import build, save_model
from costream.models.catalogue import load_model
from costream.models.importing import import_files
from costream.models.pose.blazepose import FULL, BlazePose
from costream.models.pose.choice import find_joints_with
from costream.models.pose.estimator import Crop, PoseEstimator, cut, in_picture
from costream.models.pose.found import DetectedPerson, ObjectBox
from costream.models.pose.tracker import PoseTracker, PoseTrackers
from costream.models.pose.weights import pose_network
from costream.models.skeleton.joints import JointStreams
from costream.models.verify import verify
from costream.sources.base import SourceOptions
from costream.sources.media.video_source import VideoSource
from costream.weights_io.card import Card
from costream.weights_io.file import read_weights
from kit.paths import SAMPLES, WEIGHTS

JOINT = {name: k for k, name in enumerate(MEDIAPIPE_33.joints)}


def frame(i: int, time_s: float | None = None) -> VideoFrame:
    rgb = np.zeros((8, 8, 3), np.uint8)
    return VideoFrame(i, i / 10 if time_s is None else time_s, i, lambda: rgb)


def person(x: float, y: float = 0.5, mark: float = 1.0) -> DetectedPerson:
    places = np.full((33, 2), (x, y), np.float32)
    return DetectedPerson(np.full((33, 3), mark, np.float32), np.ones(33, np.float32), places)


class Scripted(PoseTracker):
    """Finds what it is told to."""

    def __init__(
        self, persons: int, found: list[list[DetectedPerson]], places: str | None = None
    ) -> None:
        super().__init__(persons, places)
        self._script = found

    def _detect(self, frame: VideoFrame, boxes: object) -> list[DetectedPerson]:
        return self._script[frame.i]


def marks(skeleton: SkeletonFrame) -> list[float]:
    """Who is in which slot; 0: nobody."""
    return [float(m) for m in skeleton.joints[:, 0, 0]]


def test_persons_keep_their_slots_whatever_their_order() -> None:
    left, right = person(0.2, mark=1), person(0.8, mark=2)
    script = [[left, right], [right, left], [right], [person(0.75, mark=2)], [left, right]]
    tracker = Scripted(2, script)
    got = [marks(tracker.find(frame(i))) for i in range(5)]
    assert got == [[1, 2], [1, 2], [0, 2], [0, 2], [1, 2]]


def test_a_slot_is_free_a_second_after_somebody_left() -> None:
    script = [[person(0.2, mark=1)], [person(0.9, mark=2)], [person(0.9, mark=2)]]
    tracker = Scripted(2, script)
    tracker.find(frame(0, 0.0))
    assert marks(tracker.find(frame(1, 0.5))) == [2, 0]  # the nearest, if only one is there
    tracker = Scripted(2, script)
    tracker.find(frame(0, 0.0))
    assert marks(tracker.find(frame(2, 5.0))) == [2, 0]


def test_more_persons_than_slots() -> None:
    tracker = Scripted(2, [[person(0.1 * k, mark=k + 1) for k in range(4)], []])
    first = tracker.find(frame(0))
    assert marks(first) == [1, 2]
    assert first.places is not None
    assert first.places[1, 5].tolist() == pytest.approx([0.1, 0.5])
    nobody = tracker.find(frame(1))
    assert not nobody.scores.any()
    assert not nobody.joints.any()
    assert nobody.layout is MEDIAPIPE_33


def test_joints_in_the_picture_for_networks_with_two_axes() -> None:
    """As pyskl has them: -1 to 1 from left to right and from top to bottom, at any shape."""
    front = JointStreams("coco-17", 2, 2, normalise="pyskl", missing="zero", score="mean")
    assert front.places == "unit"
    front.check(MEDIAPIPE_33, 2)
    tracker = Scripted(2, [[person(0.75, 0.25)], []], places="unit")
    state = front.init_state()
    tokens, nobody = (
        front.forward_step(torch.from_numpy(front.prepare(tracker.find(frame(i))))[None], state)
        for i in range(2)
    )
    assert tokens[0, 0].tolist() == [pytest.approx([0.5, -0.5, 1.0])] * 17
    assert not tokens[0, 1].any()
    assert not nobody.any()


def test_joints_in_the_picture_have_its_proportions() -> None:
    """Two steps to the right and two down are equally far, and persons are where they stand."""
    assert JointStreams("coco-17", 3).places is None
    assert JointStreams("coco-17", 2).places == "height"
    wide = VideoFrame(0, 0.0, 0, lambda: np.zeros((40, 80, 3), np.uint8))
    both = [person(0.25, 0.5), person(0.5, 1.0)]
    found = Scripted(2, [both], places="height").find(wide)
    assert found.joints[:, 0].tolist() == [[0.5, -0.5], [1.0, -1.0]]
    assert found.places is not None
    assert found.places[:, 0].tolist() == [[0.25, 0.5], [0.5, 1.0]]


ORIGINAL = Path(__file__).parent / "references" / "blazepose.npz"


def test_landmarks_are_those_of_the_original_network() -> None:
    """Of the TFLite file in its interpreter, for squares of noise, within 1e-3 of the crop."""
    stored = read_weights(WEIGHTS / "pose.safetensors")
    network: Any = build(stored.card, stored.tensors)[0].eval()
    rows = np.random.default_rng(60).random((8, 8, 3)).astype(np.float32)
    crop = torch.from_numpy(rows.repeat(32, 0).repeat(32, 1)).permute(2, 0, 1)
    with torch.inference_mode():
        found = network(crop[None].expand(2, -1, -1, -1))
    expected = dict(np.load(ORIGINAL))
    places = torch.from_numpy(expected["lite_places"]).view(39, 5)
    space = torch.from_numpy(expected["lite_space"]).view(39, 3)
    for row in range(2):
        torch.testing.assert_close(found.places[row], places[:, :3], rtol=0, atol=256e-3)
        torch.testing.assert_close(found.visible[row], places[:, 3].sigmoid(), rtol=0, atol=1e-3)
        torch.testing.assert_close(found.space[row], space, rtol=0, atol=1e-3)
        assert float(found.present[row]) == pytest.approx(expected["lite_present"][0], abs=1e-3)


def test_a_crop_is_the_square_that_it_says_turned_and_black_outside() -> None:
    """A picture whose red grows to the right, and whose green grows downwards."""
    y, x = torch.meshgrid(torch.arange(100), torch.arange(120), indexing="ij")
    frame = torch.stack([x, y, 200 + 0 * x]).to(torch.uint8)[None]
    straight, turned, beside = cut(
        frame, [Crop(60, 50, 40, 0.0), Crop(60, 50, 40, math.pi / 2), Crop(0, 0, 40, 0.0)]
    )
    top, side = 255 * straight[:, 0, 128], 255 * turned[:, 0, 128]
    assert top[:2].tolist() == pytest.approx([59.6, 29.6], abs=0.2)
    assert side[:2].tolist() == pytest.approx([79.4, 49.6], abs=0.2)  # up is to the right there
    assert beside[:, :120, :120].max() == 0
    assert float(255 * beside[2, 200, 200]) == pytest.approx(200)


def test_places_in_a_crop_are_places_in_the_picture() -> None:
    points = torch.tensor([[128.0, 128.0], [128.0, 0.0]])
    assert in_picture(points, Crop(60, 50, 40, 0.0)).tolist() == [[60, 50], [60, 30]]
    turned = in_picture(points, Crop(60, 50, 40, math.pi / 2))
    torch.testing.assert_close(turned, torch.tensor([[60.0, 50.0], [80.0, 50.0]]))


def frames(name: str, start_s: float, end_s: float, every: int = 1) -> list[VideoFrame]:
    options = SourceOptions(start_s=start_s, end_s=end_s, box=(640, 480))
    source = VideoSource(str(SAMPLES / name), options)
    source.open()
    out = [item for item in source.items() if isinstance(item, VideoFrame) and item.i % every == 0]
    for item in out:
        assert item.rgb.size
    source.close()
    return out


def test_a_person_in_a_video() -> None:
    """Somebody who stands in a rendered room."""
    tracker = PoseTracker()
    found = [tracker.find(f) for f in frames("room.mp4", 5.0, 6.0, every=5)]
    assert len(found) >= 4
    for skeleton in found:
        assert skeleton.joints.shape == (1, 33, 3)
        assert skeleton.persons == (1,)
        joint = {name: skeleton.joints[0, k] for name, k in JOINT.items()}
        assert skeleton.scores[0, JOINT["left shoulder"]] > 0.9
        assert joint["nose"][1] > joint["left shoulder"][1] > joint["left hip"][1]  # y is up
        assert 0.15 < np.linalg.norm(joint["right shoulder"] - joint["left shoulder"]) < 0.5
        assert skeleton.places is not None
        place = {name: skeleton.places[0, k] for name, k in JOINT.items()}
        assert 0 < place["nose"][1] < place["left hip"][1] < 1  # in the picture y is down


def test_the_detector_looks_now_and_then() -> None:
    """Once or twice a second beside somebody who is followed."""
    shown = frames("room.mp4", 5.0, 7.5, every=3)
    estimator = PoseEstimator(pose_network("pose"), 2)
    persons = [estimator.find(f.rgb, f.time_s) for f in shown]
    assert [len(found) for found in persons] == [1] * len(shown)
    assert estimator.looks in (3, 4)
    for one, other in itertools.pairwise(persons):
        assert np.abs(one[0].middle - other[0].middle).max() < 0.1


def test_the_detector_looks_where_something_moves() -> None:
    """After half a second, but for the place of the person who is followed."""
    still = frames("room.mp4", 5.0, 5.1)[0].rgb
    estimator = PoseEstimator(pose_network("pose"), 2)
    (person,) = estimator.find(still, 0.0)
    x, y = (person.middle * still.shape[1::-1]).astype(int)
    theirs, others = still.copy(), still.copy()
    theirs[y - 20 : y + 20, x - 20 : x + 20] = 255
    across = (x + still.shape[1] // 2) % still.shape[1]
    others[:90, max(0, across - 45) : across + 45] = 255
    for picture, looks in ((still, 1), (theirs, 1), (others, 2), (others, 2)):
        estimator.find(picture, 0.6)
        assert estimator.looks == looks
    estimator.find(others, 2.5)
    assert estimator.looks == 2
    estimator.find(others, 2.7)
    assert estimator.looks == 3


def test_motion_that_is_nobody_new_is_looked_at_more_and_more_seldom() -> None:
    """A light flickers beside the person who is followed; after two still seconds, it is news."""
    still = frames("room.mp4", 5.0, 5.1)[0].rgb
    estimator = PoseEstimator(pose_network("pose"), 2)
    (person,) = estimator.find(still, 0.0)
    across = (int(person.middle[0] * still.shape[1]) + still.shape[1] // 2) % still.shape[1]
    when_s, flickers = [0.0], still.copy()
    for k in range(1, 41):
        flickers[:90, max(0, across - 45) : across + 45] = 255 - 60 * (k % 3)
        looks = estimator.looks
        assert len(estimator.find(flickers, k / 10)) == 1
        when_s += [k / 10] * (estimator.looks - looks)
    assert when_s == [0.0, 0.5, 1.5, 3.5]
    for k in (56, 77):
        estimator.find(still, k / 10)
    looks = estimator.looks
    estimator.find(flickers, 8.3)
    assert estimator.looks == looks + 1


def test_motion_of_nobody_is_looked_at_every_fifth_of_a_second_at_first() -> None:
    """And then half as often."""
    estimator, when_s = PoseEstimator(pose_network("pose"), 1), []
    for k in range(21):
        picture = np.full((240, 320, 3), 90, np.uint8)
        picture[:60, 10 * k : 10 * k + 60] = 200
        looks = estimator.looks
        assert not estimator.find(picture, k / 10)
        when_s += [k / 10] * (estimator.looks - looks)
    assert when_s == [0.0, 0.2, 0.4, 0.8, 1.2, 1.6, 2.0]


def test_where_nobody_was_found_is_not_searched_while_it_looks_the_same() -> None:
    """Somebody vanishes: three crops, again after half a second or when the place changes."""
    still = frames("room.mp4", 5.0, 5.1)[0].rgb
    estimator = PoseEstimator(pose_network("pose"), 1)
    estimator.find(still, 0.0)
    empty = np.full_like(still, 90)
    computed = []
    for k in range(2, 13, 2):
        before = estimator.computed
        assert not estimator.find(empty, k / 10)
        computed.append(estimator.computed - before)
    assert computed == [4, 0, 0, 3, 0, 0]  # at first also that of the frame before
    changed = empty.copy()
    changed[:, ::2] = 140
    before = estimator.computed
    estimator.find(changed, 1.4)
    assert estimator.computed == before + 3


def test_an_empty_picture_is_looked_at_once_a_second() -> None:
    estimator, empty = PoseEstimator(pose_network("pose"), 1), np.full((240, 320, 3), 90, np.uint8)
    assert not any(estimator.find(empty, k / 10) for k in range(21))
    assert estimator.looks == 3


def test_joints_are_kept_of_a_person_who_does_not_move() -> None:
    """For half a second; where a part of the crop changes they are computed again.

    Those in the detector's box are not kept, as the crop of the next frame shows more.
    """
    still = frames("room.mp4", 5.0, 5.1)[0].rgb
    estimator = PoseEstimator(pose_network("pose"), 1)
    in_box, first, *same = (estimator.find(still, k / 10) for k in range(6))
    assert (estimator.computed, estimator.kept) == (2, 4)
    assert in_box[0] is not first[0]
    assert all(found[0] is first[0] for found in same)
    estimator.find(still, 0.7)
    assert estimator.computed == 3
    x, y = (first[0].middle * still.shape[1::-1]).astype(int)
    moved = still.copy()
    moved[y : y + 12, x : x + 12] = 255 - moved[y : y + 12, x : x + 12]
    estimator.find(moved, 0.8)
    assert estimator.computed == 4


def test_in_full_joints_are_computed_in_each_frame_and_the_detector_looks_when_due() -> None:
    still = frames("room.mp4", 5.0, 5.1)[0].rgb
    estimator = PoseEstimator(pose_network("pose"), 2, sparing=False)
    for k in range(7):
        estimator.find(still, k / 10)
    assert (estimator.computed, estimator.kept, estimator.looks) == (7, 0, 2)


def turned(rgb: Any, places: Any) -> tuple[Any, Any]:
    """Return the picture with a square around places turned by a quarter, and the middle of it."""
    (x, y), half = places.mean(0).round().astype(int), 200
    around, out = np.s_[y - half : y + half, x - half : x + half], rgb.copy()
    out[around] = np.rot90(rgb[around])
    return out, (x, y)


def test_somebody_who_was_lost_is_looked_for_lying(monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle of the picture turns by a quarter; the detector finds nobody then."""
    upright = frames("room.mp4", 5.0, 5.1)[0].rgb
    estimator = PoseEstimator(pose_network("pose"), 1)
    places = estimator.find(upright, 0.0)[0].places * upright.shape[1::-1]
    lying, _ = turned(upright, places)
    fresh = PoseEstimator(pose_network("pose"), 1)
    for each in (estimator, fresh):
        monkeypatch.setattr(each, "_unknown", lambda *_: [])
    assert not fresh.find(lying, 0.1)  # nobody was there before
    found = [estimator.find(lying, 0.1 + k / 10) for k in range(5)]
    (person,) = found[-1]
    nose, hip = person.places[JOINT["nose"]], person.places[JOINT["left hip"]]
    assert abs(nose[0] - hip[0]) > 2 * abs(nose[1] - hip[1])
    empty = np.full_like(lying, 90)
    assert not any(estimator.find(empty, 1 + k / 10) for k in range(40))
    searched = estimator.computed
    assert not estimator.find(empty, 6.0)  # and not looked for any longer
    assert estimator.computed == searched


def test_somebody_who_was_lost_is_in_a_wide_box_of_which_the_detector_is_not_sure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upright = frames("room.mp4", 5.0, 5.1)[0].rgb
    estimator, fresh = (PoseEstimator(pose_network("pose"), 1) for _ in range(2))
    places = estimator.find(upright, 0.0)[0].places * upright.shape[1::-1]
    lying, (x, y) = turned(upright, places)
    monkeypatch.setattr(estimator, "_fallen", lambda *_: [])
    size = np.ptp(places, 0)[::-1].tolist()
    unsure = ObjectBox(float(x), float(y), *size, 0.2)
    high = unsure._replace(width=size[1], height=size[0])
    assert not fresh.find(lying, 0.1, [unsure])  # nobody was there before
    assert not estimator.find(lying, 0.1, [])
    assert not estimator.find(lying, 0.3, [high, unsure._replace(score=0.1)])
    (person,) = estimator.find(lying, 0.5, [unsure])
    nose, hip = person.places[JOINT["nose"]], person.places[JOINT["left hip"]]
    assert abs(nose[0] - hip[0]) > 2 * abs(nose[1] - hip[1])


def test_nobody_is_there_after_a_reset_of_the_stream() -> None:
    trackers = PoseTrackers(1, 2)
    (someone,) = trackers.find(frames("room.mp4", 5.0, 5.1)[:1])
    assert (someone.scores.max(1) > 0.9).sum() == 1
    trackers.reset([0])
    blank = VideoFrame(0, 6.0, 0, lambda: np.full((240, 320, 3), 90, np.uint8))
    assert not trackers.find([blank])[0].scores.any()


def test_weights_of_a_pose_estimator_are_not_model_by_themselves(tmp_path: Path) -> None:
    assert verify(WEIGHTS / "pose.safetensors")
    with pytest.raises(ModelError, match="pose finds joints for other models"):
        load_model("pose", WEIGHTS / "pose.safetensors")
    damaged = tmp_path / "x.tflite"
    damaged.write_bytes(b"\x1c\0\0\0TFL3" + bytes(40))
    with pytest.raises(ModelError, match=r"x\.tflite: (damaged|the tensor names)"):
        import_files([damaged], "x", {})


def test_the_larger_network_is_imported_before_it_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model("costgcn")
    monkeypatch.setenv("COSTREAM_WEIGHTS", str(tmp_path))
    missing = "no weights for pose-full here.*import pose_landmark_full.tflite --name pose-full"
    with pytest.raises(ModelError, match=missing):
        find_joints_with(model, "full")
    torch.manual_seed(0)
    card = Card("pose-full", "pose estimation", "blazepose", FULL, (), 0.0)
    save_model(tmp_path / "pose-full.safetensors", card, BlazePose(**FULL))
    (picture,) = frames("room.mp4", 5.0, 5.1)[:1]
    assert model.person_finder(1).find(picture).scores.max() > 0.9
    find_joints_with(model, "full")
    assert model.person_finder(1).find(picture).scores.max() < 0.9  # random weights see nobody


def test_a_model_without_skeletons_finds_no_joints() -> None:
    with pytest.raises(UsageError, match="cosounds does not take joints"):
        find_joints_with(load_model("cosounds"), "full")
    with pytest.raises(UsageError, match="'heavy' is not one of lite, full, movenet"):
        find_joints_with(load_model("cosounds"), "heavy")
