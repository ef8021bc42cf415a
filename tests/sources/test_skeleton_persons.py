"""Who is who: slots of persons with and without ids."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from costream.core.records import Fault, SkeletonFrame
from costream.sources.skeletons.person import Person, make_person
from costream.sources.skeletons.person_slots import KEEP_S, Slots
from costream.sources.skeletons.skeleton_recording import PersonFrame
from costream.sources.uris import open_source
from kit.paths import SAMPLES

SHAPE = np.random.default_rng(1).uniform(-0.5, 0.5, (5, 2))


def at(x: float, key: str | None = None, seen: int = 5) -> Person:
    """A person in the middle of whom is x; only the first ``seen`` joints are seen."""
    return make_person(SHAPE + np.array([x, 3.0]), np.arange(5) < seen, key)


def places(slots: Slots, time_s: float, *bodies: Person) -> list[float | None]:
    """Where the person in each slot is."""
    placed = slots.place(PersonFrame(time_s, bodies))
    return [None if b is None else round(float((b.joints - SHAPE)[0, 0]), 3) for b in placed]


def test_nearest_keeps_the_slot() -> None:
    slots = Slots(2)
    assert places(slots, 0.0, at(1), at(5)) == [1, 5]
    assert places(slots, 0.1, at(4.8), at(1.2)) == [1.2, 4.8]
    # They come close, and part again.
    assert places(slots, 0.2, at(3.5), at(2.5)) == [2.5, 3.5]
    assert places(slots, 0.3, at(2.0), at(4.0)) == [2.0, 4.0]


def test_a_person_who_leaves_keeps_nobody_elses_slot() -> None:
    slots = Slots(2)
    assert places(slots, 0.0, at(1), at(5)) == [1, 5]
    assert places(slots, 0.1, at(5.1)) == [None, 5.1]
    assert places(slots, 0.2) == [None, None]
    assert places(slots, 0.3, at(5.2)) == [None, 5.2]
    # Back after a moment: the same slot as before.
    assert places(slots, 0.4, at(5.3), at(1.5)) == [1.5, 5.3]


def test_a_slot_is_free_after_a_while() -> None:
    slots = Slots(1)
    assert places(slots, 0.0, at(1)) == [1]
    assert places(slots, 0.5 * KEEP_S, at(9)) == [9]  # one person who jumped
    slots = Slots(1)
    assert places(slots, 0.0, at(1, "a")) == [1]
    assert places(slots, 0.5 * KEEP_S, at(9, "b")) == [None]  # somebody else has to wait
    assert places(slots, 1.6 * KEEP_S, at(9, "b")) == [9]
    assert places(slots, 1.7 * KEEP_S, at(1, "a"), at(9, "b")) == [9]


def test_ids_count_more_than_places() -> None:
    slots = Slots(2)
    assert places(slots, 0.0, at(1, "a"), at(5, "b")) == [1, 5]
    assert places(slots, 0.1, at(1, "b"), at(5, "a")) == [5, 1]
    assert places(slots, 9.0, at(1, "b")) == [None, 1]
    assert places(slots, 99.0, at(2, "a"), at(1, "b")) == [2, 1]


def test_without_a_free_slot_the_best_seen_stay() -> None:
    slots = Slots(2)
    assert places(slots, 0.0, at(1, seen=2), at(5, seen=5), at(9, seen=4)) == [5, 9]
    assert places(slots, 0.1, at(1), at(5), at(9)) == [5, 9]


def test_some_joints_are_enough_to_know_somebody() -> None:
    slots = Slots(2)
    places(slots, 0.0, at(1), at(5))
    placed = slots.place(PersonFrame(0.1, (at(5.1, seen=1), at(1.1, seen=3))))
    assert [int(b.scores.sum()) for b in placed if b is not None] == [3, 1]
    # No joint is seen in both: the middles must do.
    hidden = make_person(SHAPE + np.array([5.0, 3.0]), np.arange(5) > 2)
    placed = slots.place(PersonFrame(0.2, (hidden, at(1.1))))
    assert placed[1] is hidden


def test_absent_persons_take_no_slot() -> None:
    slots = Slots(2)
    nobody = make_person(np.zeros((5, 2)))
    assert places(slots, 0.0, nobody, at(1)) == [1, None]


@given(
    st.lists(st.lists(st.floats(-50, 50), max_size=5), max_size=12),
    st.integers(1, 4),
    st.booleans(),
)
def test_nobody_is_in_two_slots_and_no_slot_is_left_empty(
    crowd: list[list[float]], size: int, keyed: bool
) -> None:
    slots = Slots(size)
    for t, people in enumerate(crowd):
        bodies = tuple(at(x, str(k) if keyed else None) for k, x in enumerate(people))
        placed = slots.place(PersonFrame(t * 2.0, bodies))  # all slots have become free
        there = [b for b in placed if b is not None]
        assert len(placed) == size
        assert len({id(b) for b in there}) == len(there) == min(size, len(people))
        assert all(any(b is body for body in bodies) for b in there)


def test_make_body() -> None:
    body = make_person([[1, 2], [np.nan, 3], [4, 5], [6, np.inf]], [0.5, 1, 0, 2])
    assert body.scores.tolist() == [0.5, 0, 0, 0]
    assert body.joints.tolist() == [[1, 2], [0, 0], [0, 0], [0, 0]]
    assert make_person([[1, 1]], [7.0]).scores.tolist() == [1.0]
    assert make_person([[1, 1]], [np.nan]).scores.tolist() == [0.0]
    assert make_person([[1e300, 1]]).scores.tolist() == [0.0]


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([-9999.0, 99999.0, 1e30]),
    st.integers(0, 2),
    st.integers(0, 4),
)
def test_joints_far_away_are_missing_and_bodies_stay_complete(seed, number, axis, joint):
    """Bodies of any size, in metres or pixels, whose arms are stretched; one number is wrong."""
    random = np.random.default_rng(seed)
    body = random.standard_normal((15, 3)) * np.exp(random.uniform(-3, 3)) + random.uniform(-9, 9)
    body[8] += (body[7] - body[1]) * 4  # a wrist
    assert make_person(body).strays == 0
    body[joint, axis] = number * np.abs(body).max()
    person = make_person(body)
    assert person.strays == 1
    assert person.scores.tolist() == [k != joint for k in range(15)]
    assert not person.joints[joint].any()


def test_two_eyes_and_a_hand_are_one_person():
    assert make_person([[0, 0], [3, 0], [400, 0], [0, 0], [0, 0]]).strays == 0


def test_joints_that_are_zero_make_no_others_far_away():
    body = np.zeros((15, 3))
    body[:4] = 1 + SHAPE[:4].repeat(2, 1)[:, :3]
    assert make_person(body).strays == 0


def test_joints_far_away_are_reported(tmp_path):
    lines = (SAMPLES / "moves.csv").read_text().splitlines()[:40]
    cells = lines[20].split(",")
    cells[4] = "-9999"
    path = tmp_path / "far.csv"
    path.write_text("\n".join([*lines[:20], ",".join(cells), *lines[21:]]) + "\n")
    source = open_source(str(path))
    source.open()
    items = list(source.items())
    source.close()
    [fault] = (item for item in items if isinstance(item, Fault))
    assert "1 joint far from their person, treated as missing" in fault.message
    assert sum(isinstance(item, SkeletonFrame) for item in items) == 39
