"""Reading of a user's examples as motions, with the sources and frontend of a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from costream.checkpoints.card import Card
from costream.clock import Tick, TickItem, resample
from costream.errors import SourceError, UsageError
from costream.evaluation.motions import Motion
from costream.frontends.joints import JointStreams
from costream.frontends.pose import PoseTrackers
from costream.labels.examples import Example, located
from costream.models.fitting import check_source
from costream.records import Fault, SkeletonFrame, VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.registry import open_source

log = logging.getLogger("costream")

FEWEST = 4  # least number of steps of an example


def read_motions(
    examples: Sequence[Example],
    card: Card,
    frontend: JointStreams,
    options: SourceOptions,
) -> list[Motion]:
    """Return the examples at the card's rate, as frames from the frontend's ``prepare``.

    In videos MediaPipe detects persons. UsageError, naming file or line, for an example that is
    too short, or shows nobody and is not of the background (the card's first label); SourceError
    if it cannot be read or does not fit the model.
    """
    bar = tqdm(examples, "reading", file=sys.stderr, disable=None, leave=False)
    return [_read(example, card, frontend, options) for example in bar]


def _read(example: Example, card: Card, frontend: JointStreams, options: SourceOptions) -> Motion:
    own = replace(options, start_s=example.start_s, end_s=example.end_s)
    source = open_source(example.source, own)
    trackers = PoseTrackers(1, frontend.persons)
    try:
        info = source.open()
        if info.kind == "features":
            raise UsageError("features are not skeletons", where=example.where)
        check_source(card, frontend, info)
        ticks = resample(source.items(), card.rate_hz, card.gap_tolerance_s)
        frames = [frontend.prepare(item) for item in _skeletons(ticks, trackers, example)]
    except SourceError as error:
        raise located(error, example) from error
    finally:
        source.close()
        trackers.reset([0])
    if len(frames) < FEWEST:
        raise UsageError(
            f"{len(frames)} steps at {card.rate_hz:g} Hz are too few to train on",
            where=example.where,
        )
    joints = np.stack(frames)
    persons = np.flatnonzero(joints[..., -1].any((0, 2)))
    if not len(persons) and example.label != card.labels[0]:
        raise UsageError("no person is visible in this example", where=example.where)
    most = max(persons, default=0) + 1
    return Motion(example.source, example.label, example.group, joints[:, :most])


def _skeletons(
    ticks: Iterator[TickItem], trackers: PoseTrackers, example: Example
) -> Iterator[SkeletonFrame]:
    for tick in ticks:
        if isinstance(tick, Fault):
            log.warning("%s: %s", example.where, tick.message)
        elif isinstance(tick, Tick) and isinstance(tick.item, VideoFrame):
            yield trackers.find([tick.item])[0]
        elif isinstance(tick, Tick) and isinstance(tick.item, SkeletonFrame):
            yield tick.item
