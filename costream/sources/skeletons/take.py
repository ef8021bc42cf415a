"""Takes: recordings that are read completely before their joints are assigned to a layout."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.layouts import BODY_15, Layout, joint_mapping
from costream.sources.numbering import beginning
from costream.sources.skeletons.axes_option import AxesOption
from costream.sources.skeletons.columns import AXES, Columns
from costream.sources.skeletons.joint_names import find_joints
from costream.sources.skeletons.person import Person, make_person
from costream.sources.skeletons.skeleton_recording import (
    BAD_ROW,
    Event,
    PersonFrame,
    SkeletonRecording,
    SkippedData,
)
from costream.sources.skeletons.table_schema import orientation

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Take:
    """A recording with the joints and the coordinates of its file."""

    names: tuple[str, ...]  # V names of joints; "0", "1", ... for numbered joints
    axes: int
    events: Sequence[Event]  # joints [V, axes] in this order
    rate_hz: float | None  # nominal frames per second
    tilted: bool = False  # three axes, any of which may be the vertical one
    assumed: tuple[str, ...] = ()  # assumptions about what the file does not state


def read_take(
    take: Take, layout: Layout | None, columns: Columns | None, where: str
) -> SkeletonRecording:
    """Return a take with the joints of a layout, y up.

    Axes of a ``tilted`` take are turned by quarter turns so that the bodies stand on average.
    Raises SourceError if the joints match no layout, or not ``layout``.
    """
    found, index = find_joints(take.names, layout, where)
    order = joint_order(index, take.names, len(found.joints))
    frames = [event for event in take.events if isinstance(event, PersonFrame)]
    if not frames:
        raise SourceError("there are no frames in it", where=where)
    turn = _turn(take, found, order, columns, where)

    def events() -> Iterator[Event]:
        for event in take.events:
            if isinstance(event, PersonFrame):
                bodies = tuple(arranged(body, order, turn) for body in event.bodies)
                yield PersonFrame(event.time_s, bodies)
            else:
                yield event

    end_s = frames[-1].time_s + (1 / take.rate_hz if take.rate_hz else 0.0)
    option = AxesOption(oriented=False)
    about = found, take.axes, take.rate_hz, end_s, events()
    return SkeletonRecording(*about, assumed=take.assumed, option=option)


def frames_of(
    places: Numbers,
    times_s: Iterable[float],
    scores: Numbers | None = None,
    keys: Sequence[Hashable] | None = None,
) -> list[Event]:
    """Return the frames of arrays [T, M, V, C] and [T, M, V]; ``keys``: of the M persons."""
    owners = range(places.shape[1]) if keys is None else keys
    return [
        PersonFrame(
            time_s,
            tuple(
                make_person(places[t, m], None if scores is None else scores[t, m], key)
                for m, key in enumerate(owners)
            ),
        )
        for t, time_s in zip(range(len(places)), times_s, strict=False)
    ]


def marker_take(
    labels: Sequence[str],
    places: Numbers,
    times_s: Iterable[float],
    rate_hz: float | None,
    *,
    bad: int = 0,
) -> Take:
    """Return the take of markers [T, K, 3] of a laboratory, whose labels may name subjects.

    A marker that a subject lacks is NaN. ``bad``: rows that could not be read.
    """
    names, subjects = split_subjects(labels)
    padded = np.concatenate([places, np.full((len(places), 1, 3), np.nan)], 1)
    by_subject = np.stack([padded[:, place] for place in subjects.values()], 1)
    events: list[Event] = [SkippedData(BAD_ROW)] * bad
    events += frames_of(by_subject, times_s, keys=list(subjects))
    return Take(names, 3, events, rate_hz, tilted=True)


def frame_times(rate_hz: float) -> Iterator[float]:
    """Return the times of frames from 0 on."""
    return (k / rate_hz for k in itertools.count())


def split_subjects(names: Sequence[str]) -> tuple[tuple[str, ...], dict[str, list[int]]]:
    """Return marker names without subjects, and the index of each marker for every subject.

    ``Anna:LASI`` and ``Ben:LASI`` are a marker of two subjects; the index is -1 if a subject lacks
    the marker. Unlabelled markers (``*12``, empty) are left out, and so is a common beginning of
    all names up to ``_``.
    """
    parted = [name.strip().rpartition(":") for name in names]
    places: dict[str, dict[str, int]] = {}
    for k, (subject, _, name) in enumerate(parted):
        if name and not name.startswith("*"):
            places.setdefault(subject, {}).setdefault(name, k)
    labels = list(dict.fromkeys(name for place in places.values() for name in place))
    cut = 0
    if len(places) == 1 and len(labels) > 1:
        cut = beginning(labels).rfind("_") + 1
    rows = {subject: [place.get(name, -1) for name in labels] for subject, place in places.items()}
    return tuple(label[cut:] for label in labels), rows


def joint_order(
    index: Mapping[str, int], names: Sequence[str], count: int
) -> npt.NDArray[np.int64]:
    """Return the place among ``names`` of each of a layout's ``count`` joints, -1 for none."""
    order = np.full(count, -1)
    for k, name in enumerate(names):
        if name in index:
            order[index[name]] = k
    return order


def arranged(body: Person, order: npt.NDArray[np.int64], turn: Numbers) -> Person:
    """Return a person with the joints in another order, turned."""
    scores = np.where(order >= 0, body.scores[order], 0).astype(np.float32)
    joints = (body.joints[order] @ turn.T.astype(np.float32)) * (scores > 0)[:, None]
    unset = None if body.unset is None else (order >= 0) & body.unset[order]
    # + 0: no -0.0
    return replace(body, joints=joints + np.float32(0), scores=scores, unset=unset)


def _turn(
    take: Take, layout: Layout, order: npt.NDArray[np.int64], columns: Columns | None, where: str
) -> Numbers:
    """Return the matrix [C, C] from the file's coordinates to those with y up."""
    size = take.axes
    if columns is not None:
        used = [column for column in columns.all if column.role in AXES]
        if not columns.by_order or len(used) != len(columns.all) or len(used) != size:
            raise SourceError(
                f"a joint has {size} numbers here",
                where=where,
                hint="say which is which, in order: --columns x,-z,y",
            )
        turn = np.zeros((size, size))
        for k, column in enumerate(used):
            turn[AXES.index(column.role), k] = column.sign
        return turn
    if not take.tilted or size == 2:
        return np.diag(orientation(layout, size))
    up = _up(take, layout, order)
    axis = int(np.argmax(np.abs(up)))
    sign = 1.0 if up[axis] >= 0 else -1.0
    # Proper rotations: left and right do not swap.
    turns = {
        0: [[0, -sign, 0], [sign, 0, 0], [0, 0, 1]],
        1: [[sign, 0, 0], [0, sign, 0], [0, 0, 1]],
        2: [[1, 0, 0], [0, 0, sign], [0, -sign, 0]],
    }
    return np.array(turns[axis], float)


def _up(take: Take, layout: Layout, order: npt.NDArray[np.int64]) -> Numbers:
    """Return the mean direction from the ankles to the hips and on to the neck, [3]."""
    try:
        parts = joint_mapping(layout, BODY_15)
    except SourceError:
        return np.array((0.0, 1.0, 0.0))
    total = np.zeros(3)
    names = BODY_15.joints
    pairs = [("hips", "neck"), ("left ankle", "left hip"), ("right ankle", "right hip")]
    for event in take.events:
        for body in event.bodies if isinstance(event, PersonFrame) else ():
            for low, high in pairs:
                ends = [order[list(parts[names.index(name)])] for name in (low, high)]
                if all((body.scores[k] > 0).all() and (k >= 0).all() for k in ends):
                    low_place, high_place = (body.joints[k].mean(0) for k in ends)
                    total += high_place.astype(np.float64) - low_place
    return total if total.any() else np.array((0.0, 1.0, 0.0))
