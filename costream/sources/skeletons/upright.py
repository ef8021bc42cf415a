"""Detection of the vertical axis: heads are mostly above feet."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.layouts import Layout, joint_mapping
from costream.core.records import Fault
from costream.sources.skeletons.columns import AXES
from costream.sources.skeletons.person import Person
from costream.sources.skeletons.skeleton_recording import (
    Event,
    PersonFrame,
    SkeletonRecording,
    TruncatedRecording,
)
from costream.sources.skeletons.table_schema import orientation

Direction = tuple[int, int]  # an axis, and 1 or -1

# From top to bottom. Bodies with fewer visible levels, or not in this order, are ignored.
_LEVELS = (
    ("head",),
    ("left shoulder", "right shoulder"),
    ("left hip", "right hip"),
    ("left knee", "right knee"),
    ("left ankle", "right ankle"),
)
_FEWEST_LEVELS = 3
_FEWEST_BODIES = 5
_FIRST = 100  # frames of a file, or counted bodies of a stream
_MOST_OF = 0.9


class Uprightness:
    """Counts the directions in which bodies stand."""

    def __init__(self, layout: Layout) -> None:
        self._levels = [_parts(layout, names) for names in _LEVELS]
        self.counts: Counter[Direction] = Counter()

    def add(self, moment: PersonFrame) -> None:
        """Count the directions of the persons of a frame."""
        for body in moment.bodies:
            direction = self._direction(body)
            if direction is not None:
                self.counts[direction] += 1

    @property
    def direction(self) -> Direction | None:
        """The direction of nearly all bodies; None if there are too few or they differ."""
        for direction, count in self.counts.most_common(1):
            if count >= max(_FEWEST_BODIES, _MOST_OF * self.counts.total()):
                return direction
        return None

    def _direction(self, body: Person) -> Direction | None:
        places = [
            np.mean([body.joints[list(part)].mean(0) for part in seen], 0)
            for parts in self._levels
            if (seen := [part for part in parts if (body.scores[list(part)] > 0).all()])
        ]
        if len(places) < _FEWEST_LEVELS:
            return None
        steps = -np.diff(places, axis=0)  # from below to above
        one_way: npt.NDArray[np.bool_] = np.abs(np.sign(steps).sum(0)) == len(steps)
        length = np.where(one_way, steps.sum(0), 0)
        axis = int(np.argmax(np.abs(length)))
        return (axis, 1 if length[axis] > 0 else -1) if one_way[axis] else None


class UprightRemark:
    """Reports once that the bodies of a stream are upside down; a stream cannot be turned."""

    def __init__(self, layout: Layout, cure: str) -> None:
        self._upright: Uprightness | None = Uprightness(layout)
        self._cure = cure

    def add(self, moment: PersonFrame) -> Iterator[Fault]:
        """Count a frame; yield the remark when it is due."""
        if self._upright is None:
            return
        self._upright.add(moment)
        if self._upright.counts.total() >= _FIRST:
            if self._upright.direction == (1, -1):
                yield Fault(moment.time_s, f"heads are below feet: {self._cure}", count=0)
            self._upright = None


def upright(recording: SkeletonRecording, *, fixed: bool) -> SkeletonRecording:
    """Return the recording with upright bodies, and with a remark if it was turned.

    ``fixed``: the user has defined the axes, so nothing is turned.
    """
    begin = list(_first(recording.events))
    uprightness = Uprightness(recording.layout)
    for event in begin:
        if isinstance(event, PersonFrame):
            uprightness.add(event)
    events: Iterator[Event] = itertools.chain(begin, recording.events)
    direction = uprightness.direction
    if direction is None or direction == (1, 1):
        return replace(recording, events=events)
    axes, option = recording.axes, recording.option
    base = orientation(recording.layout, axes).tolist()
    if direction == (1, -1) and not fixed:
        signs = np.array([-1.0, -1.0, 1.0] if axes == 3 else [1.0, -1.0], np.float32)
        usual = "upwards" if axes == 3 else "downwards, as in pictures"
        remark = f"heads are below feet if y points {usual}: y was inverted"
        if option is not None:
            remark += f"; if that is wrong: {option.text(range(axes), [1] * axes, base)}"
        events = (_turned(event, signs) for event in events)
    elif direction[0] == 1:
        remark = "heads are below feet: check the direction of y"
    elif axes == 3:
        remark = (
            f"bodies stand, or lie, along {AXES[direction[0]]}, and y is assumed to point upwards"
        )
        if option is not None:
            remark += f"; if that is wrong: {option.text(*_quarter_turn(direction), base)}"
    else:
        return replace(recording, events=events)
    return replace(recording, events=events, assumed=(*recording.assumed, remark))


def turning_option(recording: SkeletonRecording, *, fixed: bool) -> str:
    """Return the remedy if the bodies of a stream are upside down."""
    if recording.option is None or fixed:
        return "check the direction of y"
    axes = recording.axes
    base = orientation(recording.layout, axes).tolist()
    signs = [-1, -1, 1] if axes == 3 else [1, -1]
    return f"if y points the other way, use {recording.option.text(range(axes), signs, base)}"


def _parts(layout: Layout, names: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the indices of each joint in the layout, or of the joints it is computed from."""
    found: list[tuple[int, ...]] = []
    for name in names:
        try:
            found += joint_mapping(layout, Layout(name, (name,), (), 0))
        except SourceError:
            continue
    return found


def _first(events: Iterator[Event]) -> Iterator[Event]:
    """Yield the events of the first frames; an error after some frames ends the recording."""
    count = 0
    while count < _FIRST:
        try:
            event = next(events, None)
        except SourceError as error:
            if count < 2:  # the file cannot be read
                raise
            event = TruncatedRecording(str(error))
        if event is None:
            return
        yield event
        count += isinstance(event, PersonFrame)


def _turned(event: Event, signs: npt.NDArray[np.float32]) -> Event:
    if not isinstance(event, PersonFrame):
        return event
    bodies = (
        replace(body, joints=body.joints * signs + np.float32(0))  # + 0: no -0.0
        for body in event.bodies
    )
    return replace(event, bodies=tuple(bodies))


def _quarter_turn(direction: Direction) -> tuple[Sequence[int], Sequence[int]]:
    """Return which axis of a file is x, y, z, and with which sign, so that bodies stand along y."""
    axis, sign = direction
    if axis == 0:
        return (1, 0, 2), (-sign, sign, 1)
    return (0, 2, 1), (1, sign, -sign)
