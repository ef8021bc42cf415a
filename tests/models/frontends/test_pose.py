from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costream.core.layouts import MEDIAPIPE_33
from costream.core.records import SkeletonFrame, VideoFrame
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.pose import DetectedPerson, PoseTracker, PoseTrackers, quiet_stderr
from costream.sources.base import SourceOptions
from costream.sources.media.video_source import VideoSource
from kit.paths import PACKS

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

    def _detect(self, frame: VideoFrame) -> list[DetectedPerson]:
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


def test_native_noise_is_kept_off_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_stderr():
        os.write(2, b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n")
    os.write(2, b"mine\n")
    with quiet_stderr(active=False):
        os.write(2, b"too\n")
    assert capfd.readouterr().err == "mine\ntoo\n"


@pytest.fixture(scope="module")
def clips(tmp_path_factory: Any) -> Path:
    pytest.importorskip("mediapipe", reason="pip install 'costream[pose]'")
    pack = PACKS / "samples.tar"
    if not pack.exists():
        pytest.skip("needs ../shared/packs/samples.tar (the project's shared data)")
    folder: Path = tmp_path_factory.mktemp("clips")
    with tarfile.open(pack) as tar:
        members = [m for m in tar.getmembers() if Path(m.name).name in WANTED]
        for member in members:
            member.name = Path(member.name).name
        tar.extractall(folder, members, filter="data")
    return folder


WANTED = ("asl-gestures-8-signs.mp4", "one-by-one-person-detection.mp4")


def frames(path: Path, start_s: float, end_s: float, every: int = 1) -> list[VideoFrame]:
    source = VideoSource(str(path), SourceOptions(start_s=start_s, end_s=end_s, box=(640, 480)))
    source.open()
    out = [item for item in source.items() if isinstance(item, VideoFrame) and item.i % every == 0]
    for item in out:
        assert item.rgb.size
    source.close()
    return out


def test_a_person_in_a_video(clips: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A man who stands and signs, seen from the knees up."""
    tracker = PoseTracker()
    found = [tracker.find(f) for f in frames(clips / WANTED[0], 1.0, 2.0, every=3)]
    assert capfd.readouterr().err == ""
    for skeleton in found[1:]:
        assert skeleton.joints.shape == (1, 33, 3)
        joint = {name: skeleton.joints[0, k] for name, k in JOINT.items()}
        assert skeleton.scores[0, JOINT["nose"]] > 0.9
        assert joint["nose"][1] > joint["left shoulder"][1] > joint["left hip"][1]  # y is up
        assert joint["right shoulder"][0] > joint["left shoulder"][0]  # x as a Kinect's
        assert joint["nose"][2] < joint["left ear"][2]  # he looks at us, z goes away
        assert 0.2 < np.linalg.norm(joint["right shoulder"] - joint["left shoulder"]) < 0.5
        assert skeleton.places is not None
        place = {name: skeleton.places[0, k] for name, k in JOINT.items()}
        assert place["nose"][1] < place["left hip"][1]  # in the picture y is down
        assert place["right shoulder"][0] < place["left shoulder"][0]


def test_nobody_and_then_somebody(clips: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trackers = PoseTrackers(1, 2)
    empty = trackers.find([frames(clips / WANTED[1], 1.0, 1.1)[0]])[0]
    assert not empty.scores.any()
    for f in frames(clips / WANTED[1], 8.0, 8.5):
        (someone,) = trackers.find([f])
    assert (someone.scores.max(1) > 0.9).sum() == 1
    trackers.reset([0])
    assert not trackers.find([frames(clips / WANTED[1], 1.0, 1.1)[0]])[0].scores.any()
    assert capfd.readouterr().err == ""
