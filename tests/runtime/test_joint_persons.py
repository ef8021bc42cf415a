"""A detector, the joints of the persons it finds, and what they do: one number for each person."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costream
from costream.core.layouts import MEDIAPIPE_33
from costream.core.records import Box, Compute, SkeletonFrame, VideoFrame
from costream.models.auto import ACTIONS, DETECTOR, SOUND, expanded
from costream.models.base import NetworkRun, StepResult
from costream.options import budget as budget_file
from costream.runtime.joints import JointFinder
from kit.media import make_video
from kit.paths import SAMPLES
from kit.runs import records, run

SIDE = 400  # of the pictures, in pixels


class Scripted:
    """Finds the joints of persons at given places; numbers them by slot, from 101 on."""

    def __init__(self) -> None:
        self.there: dict[int, tuple[float, float]] = {}  # middles by slot
        self.given: list[int | None] = []  # boxes that it was given
        self.may: Callable[[float, float], bool] | None = None
        self.ran: NetworkRun | None = None

    def find(self, frame: VideoFrame, boxes: Sequence[Box] | None = None) -> SkeletonFrame:
        self.given.append(None if boxes is None else len(boxes))
        joints = np.zeros((4, 33, 2), np.float32)
        scores = np.zeros((4, 33), np.float32)
        for slot, (x, y) in self.there.items():
            corners = np.array([(x - 20, y - 50), (x + 20, y + 50)], np.float32) / SIDE
            joints[slot] = np.resize(corners, (33, 2))
            scores[slot] = 1
        persons = tuple(101 + k if k in self.there else 0 for k in range(4))
        return SkeletonFrame(
            0, frame.time_s, joints, scores, MEDIAPIPE_33, places=joints, persons=persons
        )

    def close(self) -> None:
        self.there = {}


def box_at(x: float, y: float, label: str = "person", score: float = 0.9) -> Box:
    return Box(x - 25, y - 55, x + 25, y + 55, score, label)


def look(finder: JointFinder, time_s: float, boxes: Sequence[Box], *, looked: bool) -> StepResult:
    frame = VideoFrame(0, time_s, None, lambda: np.zeros((SIDE, SIDE, 3), np.uint8))
    ran = {DETECTOR: "motion"} if looked else {}
    scene = StepResult(None, None, (False,), 0, 0, 0.0, 0.0, objects=(tuple(boxes),), ran=(ran,))
    return finder.find(frame, scene)


def make_finder() -> tuple[JointFinder, Scripted]:
    poses = Scripted()
    return JointFinder(poses, DETECTOR, lambda _: 0.4), poses


def test_joints_have_the_number_of_their_box() -> None:
    finder, poses = make_finder()
    poses.there = {0: (300, 200), 2: (100, 200)}
    boxes = [box_at(100, 200), box_at(300, 200), box_at(200, 200, "chair"), box_at(30, 60)]
    result = look(finder, 0.0, boxes, looked=True)
    assert result.objects is not None
    ids = [box.id for box in result.objects[0]]
    assert sorted(filter(None, ids)) == [1, 2, 3, 4]
    assert finder.present == sorted([ids[0], ids[1]])
    assert finder.skeletons is not None
    assert finder.skeletons.persons == (ids[1], 0, ids[0], 0)
    held = look(finder, 0.1, boxes, looked=False)
    assert held.objects == result.objects
    assert poses.given == [3, None]


def test_between_looks_a_box_moves_with_the_joints_of_its_person() -> None:
    finder, poses = make_finder()
    poses.there = {0: (100, 200)}
    boxes = [box_at(100, 200), box_at(300, 200), box_at(200, 200, "chair")]
    look(finder, 0.0, boxes, looked=True)
    assert finder.followed[0] == pytest.approx((80 / SIDE, 150 / SIDE, 120 / SIDE, 250 / SIDE))
    poses.there = {0: (130, 190)}
    result = look(finder, 0.1, boxes, looked=False)
    assert result.objects is not None
    moved = [replace(box, id=None) for box in result.objects[0]]
    corners = [moved[0].x1, moved[0].y1, moved[0].x2, moved[0].y2]
    assert corners == pytest.approx([105 - 3, 135 + 3, 155 - 3, 245 + 3], abs=1e-3)
    assert moved[1:] == boxes[1:]
    assert not finder.lost
    poses.there = {}
    assert look(finder, 0.2, boxes, looked=False).objects is not None
    assert finder.lost
    assert not finder.followed
    look(finder, 0.3, [], looked=True)
    assert not finder.lost


def test_who_is_followed_keeps_the_number_when_the_box_is_lost() -> None:
    finder, poses = make_finder()
    poses.there = {0: (100, 200)}
    look(finder, 0.0, [box_at(100, 200)], looked=True)
    poses.there = {0: (320, 200)}  # further than boxes are matched
    for k in range(1, 30):
        look(finder, k / 5, [], looked=True)
    result = look(finder, 6.0, [box_at(320, 200)], looked=True)
    assert result.objects is not None
    assert [box.id for box in result.objects[0]] == finder.present == [1]
    poses.there = {}
    look(finder, 6.2, [box_at(325, 200)], looked=True)
    poses.there = {1: (330, 200)}  # found again in the box, by another number
    look(finder, 6.4, [box_at(330, 200)], looked=True)
    assert finder.present == [1]


places = st.tuples(st.integers(40, 360), st.integers(60, 340))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.tuples(places, st.sampled_from(["person", "chair"])), max_size=4),
            st.dictionaries(st.integers(0, 3), places, max_size=4),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_number_stands_for_two(
    steps: list[tuple[bool, list[tuple[tuple[int, int], str]], dict[int, tuple[int, int]]]],
) -> None:
    finder, poses = make_finder()
    labels: dict[int, str] = {}
    for k, (looked, found, there) in enumerate(steps):
        poses.there = dict(there)
        boxes = [box_at(*place, label) for place, label in found]
        result = look(finder, k / 5, boxes, looked=looked or k == 0)
        assert result.objects is not None
        ids = [box.id for box in result.objects[0] if box.id is not None]
        assert len(ids) == len(set(ids))
        assert finder.skeletons is not None
        persons = [n for n in finder.skeletons.persons or () if n]
        assert len(persons) == len(set(persons))
        for box in result.objects[0]:
            assert labels.setdefault(box.id or 0, box.label) == box.label
        assert all(labels.setdefault(n, "person") == "person" for n in persons)


@pytest.mark.slow
def test_persons_things_and_sounds_in_one_run(tmp_path: Path) -> None:
    assert expanded("auto", "any").startswith(f"{DETECTOR},{SOUND},{ACTIONS}")
    film = SAMPLES / "corridor.mp4"
    run("detect", film, "--licence", "any", "--end", "3", "-o", tmp_path, "-q")
    found = records(tmp_path / "corridor.mp4.jsonl")
    header, steps = found[0], [r for r in found if r["type"] == "compute"]
    assert header["model"] == f"{DETECTOR},{SOUND},{ACTIONS}"
    assert header["rate_hz"] == 15
    looks = [r["time_s"] for r in steps if DETECTOR in r["ran"]]
    assert min(np.diff(looks)) >= 0.2 - 1e-6
    boxes = [box for r in found if r["type"] == "objects" for box in r["boxes"]]
    people = {box[6] for box in boxes if box[5] == "person"}
    acting = {r["person"] for r in found if r["type"] == "prediction" and r["model"] == ACTIONS}
    assert acting
    assert acting <= people


@pytest.mark.slow
def test_all_networks_keep_a_budget_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody walks, to and fro, and a tone is heard; from 10 s on there is less.

    The camera turns, as a fixed one's pictures need less than such a budget.
    """
    monkeypatch.setattr(budget_file, "CHECK_S", 0.0)
    with av.open(str(SAMPLES / "room.mp4")) as room:
        room.seek(4_000_000)
        frames = itertools.islice(room.decode(video=0), 0, 100, 4)
        walk = [frame.to_ndarray(format="rgb24", width=320, height=240) for frame in frames]
    there_and_back = [*walk, *walk[::-1]]
    film = make_video(
        tmp_path / "walk.mp4",
        160,
        size=(320, 240),
        rate=8,
        pattern=lambda k, _: np.roll(there_and_back[k % len(there_and_back)], 8 * k, axis=1),
        audio_s=20.0,
    )
    path = tmp_path / "budget"
    path.write_text("90MMAC")
    costs: list[Compute] = []
    for record in costream.detect(film, "auto", licence="any", budget=f"@{path}"):
        if isinstance(record, Compute):
            costs.append(record)
            if record.time_s >= 10.0:
                path.write_text("50MMAC")
    assert {name for cost in costs for name in cost.ran or ()} == {DETECTOR, SOUND, ACTIONS}
    assert {name for cost in costs for name in cost.parts or ()} == {DETECTOR, SOUND, ACTIONS}
    assert all(cost.macs == sum((cost.parts or {}).values()) for cost in costs)
    before, after = (
        np.mean([c.macs for c in costs if begin <= c.time_s < begin + 9.5]) for begin in (0.5, 10.5)
    )
    assert before == pytest.approx(90e6, rel=0.1)
    assert after == pytest.approx(50e6, rel=0.1)
