"""Writes a format until the system refuses; see test_conformance.test_a_full_disk."""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

import numpy as np

from costream.errors import OutputError
from costream.records import (
    Compute,
    FeatureRow,
    Header,
    Picture,
    Prediction,
    Segment,
    StageTimes,
    Summary,
)
from costream.sinks.base import PictureSink
from costream.sinks.registry import make_sinks


def main(format: str, directory: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing fails with EFBIG instead
    header = Header("0", "m", "0" * 64, ("a",), None, 10.0, 0.0, "clip.mp4", "video", None, {})
    sinks = make_sinks([format], Path(directory), "clip.mp4")
    told, more = False, 0
    try:
        for sink in sinks:
            sink.open(header)
        for i in range(2000):
            if i == 300:  # every file holds more by now, whenever it was flushed
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            cost = Compute(i, float(i), 1, 1, StageTimes(1.0, 1.0, 1.0, 1.0))
            segment = Segment(float(i), i + 1.0, "a", 0.5)
            for record in (Prediction(i, float(i), i, i, (("a", 0.5),)), segment, cost):
                for sink in sinks:
                    sink.write(record)
            for sink in sinks:
                if isinstance(sink, PictureSink):
                    row = FeatureRow(i, float(i), np.zeros(1, np.float32))
                    sink.draw(Picture(float(i), row, None))
    except OutputError as error:
        print(f"OutputError {error}", flush=True)
        told = True
    for sink in sinks:
        try:
            sink.close(Summary(1, 0, 0, 0, 1.0, 1.0, 1.0, 1, 1, False, 3))
        except OutputError as error:  # of a format that is written at the end
            if told:
                more += 1
            else:
                print(f"OutputError {error}", flush=True)
                told = True
    print(f"closed, {more} more")


if __name__ == "__main__":
    main(*sys.argv[1:])
