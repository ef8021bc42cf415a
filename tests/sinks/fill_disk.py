"""Writes a format until the system refuses; see test_conformance.test_a_full_disk."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from costream.core.errors import OutputError
from costream.core.layouts import BODY_15
from costream.core.records import (
    OBJECT_DETECTION,
    Box,
    Compute,
    FeatureRow,
    Header,
    Objects,
    Picture,
    Prediction,
    Record,
    Segment,
    SkeletonFrame,
    StageTimes,
    Summary,
    VideoFrame,
)
from costream.sinks.base import PictureSink
from costream.sinks.registry import make_sinks


def main(format: str, directory: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing fails with EFBIG instead
    header = Header("0", "m", "0" * 64, ("a",), None, 10.0, 0.0, "clip.mp4", "video", None, {})
    finds = format == "coco"
    header = replace(header, task=OBJECT_DETECTION) if finds else header
    sinks = make_sinks([format], Path(directory), "clip.mp4")
    attempts = Attempts()
    for sink in sinks:
        sink.open(header)
    for i in range(2000):
        if i == 300:  # every file holds more by now, whenever it was flushed
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        for record in records_of(i, finds):
            for sink in sinks:
                attempts.make(partial(sink.write, record))
        for sink in sinks:
            if isinstance(sink, PictureSink):
                attempts.make(partial(sink.draw, picture_of(i, finds)))
        if attempts.failed:
            break  # at the end of a step: every file has got a row that it cannot hold
    for sink in sinks:  # a format that is written at the end fails here
        attempts.make(partial(sink.close, Summary(1, 0, 0, 0, 1.0, 1.0, 1.0, 1, 1, False, 3)))
    print(f"closed, {max(attempts.failed - 1, 0)} more")


class Attempts:
    """Calls that may fail because the disk is full; the first failure is printed."""

    def __init__(self) -> None:
        self.failed = 0

    def make(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OutputError as error:
            self.failed += 1
            if self.failed == 1:
                print(f"OutputError {error}", flush=True)


def records_of(i: int, finds: bool) -> tuple[Record, ...]:
    """Return the records of a step. ``finds``: of a model that detects objects."""
    step: Record = Prediction(i, float(i), i, i, (("a", 0.5),))
    if finds:
        step = Objects(i, float(i), i, i, (Box(0, 0, 1, 1, 0.5, "a"),))
    cost = Compute(i, float(i), 1, 1, StageTimes(1.0, 1.0, 1.0, 1.0))
    return step, Segment(float(i), i + 1.0, "a", 0.5), cost


def picture_of(i: int, finds: bool) -> Picture:
    somebody = (np.ones((1, 15, 3), np.float32), np.ones((1, 15), np.float32))
    skeleton = SkeletonFrame(i, float(i), *somebody, BODY_15)
    if finds:
        frame = VideoFrame(i, float(i), i, bytes, size=(2, 2))  # no pixels
        return Picture(float(i), frame, skeleton)
    return Picture(float(i), FeatureRow(i, float(i), np.zeros(1, np.float32)), skeleton)


if __name__ == "__main__":
    main(*sys.argv[1:])
