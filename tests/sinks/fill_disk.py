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
    failed = 0

    def attempt(action: Callable[[], None]) -> None:
        nonlocal failed
        try:
            action()
        except OutputError as error:
            failed += 1
            if failed == 1:
                print(f"OutputError {error}", flush=True)

    for sink in sinks:
        sink.open(header)
    for i in range(2000):
        if i == 300:  # every file holds more by now, whenever it was flushed
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        cost = Compute(i, float(i), 1, 1, StageTimes(1.0, 1.0, 1.0, 1.0))
        segment = Segment(float(i), i + 1.0, "a", 0.5)
        step: Record = Prediction(i, float(i), i, i, (("a", 0.5),))
        step = Objects(i, float(i), i, i, (Box(0, 0, 1, 1, 0.5, "a"),)) if finds else step
        for record in (step, segment, cost):
            for sink in sinks:
                attempt(partial(sink.write, record))
        for sink in sinks:
            if isinstance(sink, PictureSink):
                row = FeatureRow(i, float(i), np.zeros(1, np.float32))
                frame = VideoFrame(i, float(i), i, bytes, size=(2, 2))  # no pixels are needed
                attempt(partial(sink.draw, Picture(float(i), frame if finds else row, None)))
        if failed:
            break  # at the end of a step: every file has got a row that it cannot hold
    for sink in sinks:  # a format that is written at the end fails here
        attempt(partial(sink.close, Summary(1, 0, 0, 0, 1.0, 1.0, 1.0, 1, 1, False, 3)))
    print(f"closed, {max(failed - 1, 0)} more")


if __name__ == "__main__":
    main(*sys.argv[1:])
