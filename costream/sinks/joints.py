"""Joints of persons as a table, which ``costream detect`` reads again."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from costream.core.layouts import MEDIAPIPE_33, Layout
from costream.core.records import Picture, SkeletonFrame, Summary, VideoFrame
from costream.sinks.atomic import TextOutput
from costream.sinks.base import TextSink, output_file

_DIGITS = 5
_STEP = ("time_s", "frame", "person")  # headings before those of the joints
# What is read as MediaPipe's joints in space has the axes of a camera: x right, y down, z away.
_CAMERA = (-1.0, -1.0, 1.0)


@output_file("joints.csv", format="joints", about="joints of each person as CSV", order=9)
class JointTable(TextSink):
    """One row for each person of a step: time, frame, number, and all joints.

    A joint has its coordinates as the model gets them (metres around the hips, or places in the
    picture), its score, and, if they were found in a picture, its place there in pixels.
    """

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._layout: Layout | None = None  # of the columns, once there was a skeleton

    def draw(self, picture: Picture) -> None:
        """Write the persons in a step."""
        skeleton, item = picture.skeleton, picture.item
        if skeleton is None:
            return
        if self._layout is None:
            self._layout = skeleton.layout
            self._row([*_STEP, *_columns(skeleton)])
        if skeleton.layout is not self._layout:
            return
        joints, size = _written(skeleton), None
        if isinstance(item, VideoFrame) and skeleton.places is not None:
            size = item.size or item.rgb.shape[1::-1]
        numbers = skeleton.persons or tuple(range(1, len(joints) + 1))
        for slot, number in enumerate(numbers):
            if not skeleton.scores[slot].any():
                continue
            parts = [joints[slot], skeleton.scores[slot, :, None]]
            if size is not None and skeleton.places is not None:
                parts.append(skeleton.places[slot] * np.array(size, np.float32))
            values = np.concatenate(parts, 1).ravel().astype(float).round(_DIGITS).tolist()
            self._row([round(picture.time_s, 6), item.i, number, *values])

    def close(self, summary: Summary) -> None:
        """Finish the output; without anybody it has a heading only."""
        if self._layout is None:
            self._row(_STEP)
        super().close(summary)

    def _row(self, values: Sequence[object]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)
        self._out.write(text.getvalue(), flush=True)


def _columns(skeleton: SkeletonFrame) -> list[str]:
    """Return the headings of the joints."""
    names = [*"xyz"[: skeleton.joints.shape[2]], "score"]
    if skeleton.places is not None:
        names += ["column", "row"]
    joints = [name.replace(" ", "_") for name in skeleton.layout.joints]
    return [f"{joint}_{name}" for joint in joints for name in names]


def _written(skeleton: SkeletonFrame) -> npt.NDArray[np.float32]:
    """Return the joints as they are written: those in a picture with y down, as they are read."""
    axes = skeleton.joints.shape[2]
    signs: tuple[float, ...] = (1.0, -1.0) if axes == 2 else (1.0, 1.0, 1.0)
    if axes == 3 and skeleton.layout.name == MEDIAPIPE_33.name:
        signs = _CAMERA
    written: npt.NDArray[np.float32] = skeleton.joints * np.array(signs, np.float32)
    return written
