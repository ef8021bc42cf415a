"""Reading of a user's examples as motions, with the sources and frontend of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
from tqdm import tqdm

from costream.core.clock import Tick, TickItem, resample
from costream.core.errors import UsageError
from costream.core.records import SkeletonFrame, VideoFrame
from costream.labels.examples import Example
from costream.models.pose.tracker import PoseTrackers
from costream.models.skeleton.joints import JointStreams
from costream.sources.base import SourceOptions
from costream.training.open_examples import MIN_STEPS, of_each, open_example
from costream.training.skeleton.motions import Motion
from costream.weights_io.card import Card


def read_motions(
    examples: Sequence[Example],
    card: Card,
    frontend: JointStreams,
    options: SourceOptions,
    *,
    empty: bool = False,
) -> list[Motion]:
    """Return the examples at the card's rate, as frames from the frontend's ``prepare``.

    In videos persons are found. ``empty``: whether examples may show nobody. UsageError, naming
    file or line, for an example that is too short, or shows nobody and is not of the background
    (the card's first label); SourceError if it cannot be read or does not fit the model.
    """
    bar = tqdm(examples, "reading", file=sys.stderr, disable=None, leave=False)
    return of_each(bar, lambda example: _read(example, card, frontend, options, empty))


def _read(
    example: Example, card: Card, frontend: JointStreams, options: SourceOptions, empty: bool
) -> Motion:
    trackers = PoseTrackers(1, frontend.persons, frontend.places)
    try:
        with open_example(example, card, frontend, options) as items:
            ticks = resample(items, card.rate_hz, card.gap_tolerance_s)
            frames = [frontend.prepare(item) for item in _skeletons(ticks, trackers)]
    finally:
        trackers.reset([0])
    if len(frames) < MIN_STEPS:
        raise UsageError(
            f"too short to train on: {len(frames)} steps at {card.rate_hz:g} Hz, {MIN_STEPS} are"
            " needed",
            where=example.where,
        )
    joints = np.stack(frames)
    persons = np.flatnonzero(joints[..., -1].any((0, 2)))
    if not len(persons) and not empty and example.label != card.labels[0]:
        raise UsageError("no person is visible in this example", where=example.where)
    most = max(persons, default=0) + 1
    return Motion(example.source, example.label, example.group, joints[:, :most])


def _skeletons(ticks: Iterator[TickItem], trackers: PoseTrackers) -> Iterator[SkeletonFrame]:
    for tick in ticks:
        if isinstance(tick, Tick) and isinstance(tick.item, VideoFrame):
            yield trackers.find([tick.item])[0]
        elif isinstance(tick, Tick) and isinstance(tick.item, SkeletonFrame):
            yield tick.item
