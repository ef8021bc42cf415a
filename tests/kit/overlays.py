"""Plays records into an annotated video and reads its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np

from costream.core.records import Picture
from costream.sinks.atomic import BinaryFile
from costream.sinks.overlay import Overlay


def play(path: Path, run: Any, *records: Any) -> list[np.ndarray]:
    """Write a video of records and pictures with a run's header; return its frames, RGB."""
    sink = Overlay(BinaryFile(path))
    sink.open(run.header)
    for record in records:
        (sink.draw if isinstance(record, Picture) else sink.write)(record)
    sink.close(run.summary)
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def near(image: np.ndarray, color: tuple[int, int, int], slack: int = 40) -> np.ndarray:
    """Return where an image has a colour, give or take ``slack``."""
    return (np.abs(image.astype(int) - color) < slack).all(-1)
