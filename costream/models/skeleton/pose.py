"""Pose estimation with MediaPipe Pose (BlazePose, Bazarevsky et al., 2020), per stream.

Needs the ``pose`` extra. Its wheel contains both networks, the person detector and the one for a
person's joints, so nothing is downloaded; but not the bundle of both that detects several
persons, which is assembled here from these files.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.layouts import MEDIAPIPE_33
from costream.core.records import SkeletonFrame, VideoFrame

BOX = (640, 480)  # frames are fitted into this; a person of a third of it is still detected well
KEEP_S = 1.0  # a person who was not detected for this long has left the slot
_FIRST = 3  # frames with persons after which MediaPipe writes no more messages

# Signs that rotate MediaPipe's camera axes (x right, y down, z away) to a Kinect's: y up, z away,
# x left. A rotation about z, so that left and right hands are not swapped.
_SIGNS = np.array((-1, -1, 1), np.float32)
_TORSO = (11, 12, 23, 24)  # shoulders and hips

Numbers = npt.NDArray[np.float32]


def installed_version() -> str | None:
    """Return the installed version of MediaPipe, or None."""
    try:
        return version("mediapipe")
    except PackageNotFoundError:
        return None


def load_mediapipe(model: str) -> None:
    """Load MediaPipe, which takes seconds; SourceError if it is missing or broken."""
    if installed_version() is None:
        python = sys.version_info[:2]
        hint = "pip install 'costream[pose]' to find them in video"
        if python > (3, 12):
            hint += f" with Python 3.10 to 3.12 (this is {python[0]}.{python[1]})"
        hint += ", or use a model for video: -m cooadtr"
        raise SourceError(f"{model} takes skeletons, not video", hint=hint)
    with quiet_stderr(), _errors():
        import mediapipe.tasks.python.vision  # noqa: F401

        _bundle()


@dataclass(frozen=True)
class DetectedPerson:
    """A person detected in a frame."""

    joints: Numbers  # float32 [33, 3], metres around the hips, y up
    scores: Numbers  # float32 [33], 0 to 1
    places: Numbers  # float32 [33, 2], 0 to 1 in the image, y down

    @property
    def middle(self) -> Numbers:
        """Middle of the torso in the image."""
        middle: Numbers = self.places[list(_TORSO)].mean(0)
        return middle


class PoseTracker:
    """Detects up to ``persons`` persons in the frames of one stream, each in a slot of its own.

    With one person, the most visible one is tracked, and detected again only when lost. With
    more, detection runs on each frame, which costs about half as much again. ``places``: None for
    joints in metres, or the unit of their places in the picture: "unit", 0 to 1 along both sides,
    or "height", that of the picture.
    """

    def __init__(self, persons: int = 1, places: str | None = None) -> None:
        self._persons, self._places = persons, places
        self._landmarker: Any = None
        self._frames_with_persons = 0
        self._clock_ms = -1
        self._last: list[tuple[float, Numbers] | None] = [None] * persons  # time and place
        self._numbers = [0] * persons  # of the persons in the slots
        self._newest = 0

    def find(self, frame: VideoFrame) -> SkeletonFrame:
        """Return the persons in a frame as a SkeletonFrame of layout mediapipe-33.

        Joints are MediaPipe's world landmarks, three axes, metres, the hips at the origin; or
        places, x and y from the upper left corner on, y negative. Scores are its visibility.
        Persons are numbered from 1 on, in order of appearance. SourceError if MediaPipe does not
        work here.
        """
        persons = self._detect(frame)
        shape = (self._persons, len(MEDIAPIPE_33.joints))
        joints, places = np.zeros((*shape, 3), np.float32), np.zeros((*shape, 2), np.float32)
        scores = np.zeros(shape, np.float32)
        for slot, person in self._assign(persons, frame.time_s):
            joints[slot], scores[slot] = person.joints, person.scores
            places[slot] = person.places
            self._last[slot] = (frame.time_s, person.middle)
        if self._places is not None:
            height, width, _ = frame.rgb.shape
            wide = width / height if self._places == "height" else 1.0
            joints = places * np.array((wide, -1), np.float32)
        about = (frame.i, frame.time_s, joints, scores, MEDIAPIPE_33)
        return SkeletonFrame(*about, places=places, persons=tuple(self._numbers))

    def close(self) -> None:
        """Release the networks; the next frame starts afresh, but for the numbers of persons."""
        if self._landmarker is not None:
            self._landmarker.close()
        newest = self._newest
        self.__init__(self._persons, self._places)  # type: ignore[misc]
        self._newest = newest

    def _detect(self, frame: VideoFrame) -> list[DetectedPerson]:
        with quiet_stderr(self._frames_with_persons < _FIRST):
            if self._landmarker is None:
                self._landmarker = _make_landmarker(self._persons)
            import mediapipe

            image = mediapipe.Image(
                image_format=mediapipe.ImageFormat.SRGB, data=np.ascontiguousarray(frame.rgb)
            )
            # MediaPipe rejects timestamps that do not increase.
            self._clock_ms = max(self._clock_ms + 1, round(1000 * frame.time_s))
            result = self._landmarker.detect_for_video(image, self._clock_ms)
            self._frames_with_persons += bool(result.pose_landmarks)
        pairs = zip(result.pose_world_landmarks, result.pose_landmarks, strict=True)
        return [_detected_person(world, image) for world, image in pairs]

    def _assign(
        self, persons: Sequence[DetectedPerson], time_s: float
    ) -> Iterator[tuple[int, DetectedPerson]]:
        """Yield a slot for each person: that of the nearest known person, else a free one."""
        slots = dict(enumerate(self._last))
        known = {
            slot: last[1] for slot, last in slots.items() if last and time_s - last[0] <= KEEP_S
        }
        left = list(range(len(persons)))
        while left and known:
            k, slot = min(
                ((k, slot) for k in left for slot in known),
                key=lambda pair: float(np.linalg.norm(persons[pair[0]].middle - known[pair[1]])),
            )
            yield slot, persons[k]
            left.remove(k)
            del known[slot], slots[slot]
        free = [slot for slot in slots if slot not in known]
        for slot, k in zip(free, left, strict=False):
            self._newest += 1
            self._numbers[slot] = self._newest
            yield slot, persons[k]


class PoseTrackers:
    """The trackers of a batch of streams, created at the first frame."""

    def __init__(self, batch_size: int, persons: int, places: str | None = None) -> None:
        self._trackers = [PoseTracker(persons, places) for _ in range(batch_size)]

    def find(self, frames: Sequence[VideoFrame]) -> list[SkeletonFrame]:
        """Return the persons in one frame of every stream."""
        pairs = zip(self._trackers, frames, strict=True)
        return [tracker.find(frame) for tracker, frame in pairs]

    def reset(self, rows: Sequence[int]) -> None:
        """Reset the trackers of these streams."""
        for row in rows:
            self._trackers[row].close()


@contextmanager
def quiet_stderr(active: bool = True) -> Iterator[None]:
    """Discard what native code writes to standard error while the block runs.

    MediaPipe's libraries write start messages there that no logging setting suppresses.
    """
    if not active:
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _detected_person(world: Sequence[Any], image: Sequence[Any]) -> DetectedPerson:
    joints = np.array([(p.x, p.y, p.z) for p in world], np.float32) * _SIGNS
    scores = np.array([p.visibility for p in world], np.float32).clip(0, 1)
    return DetectedPerson(joints, scores, np.array([(p.x, p.y) for p in image], np.float32))


def _make_landmarker(persons: int) -> Any:
    with _errors():
        from mediapipe.tasks.python import BaseOptions, vision

        options = vision.PoseLandmarkerOptions(
            base_options=BaseOptions(model_asset_buffer=_bundle()),
            running_mode=vision.RunningMode.VIDEO,
            num_poses=persons,
        )
        return vision.PoseLandmarker.create_from_options(options)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # native libraries raise anything
        reason = " ".join(str(error).split())[:200]
        raise SourceError(
            f"MediaPipe {installed_version()} cannot be used ({type(error).__name__}: {reason})",
            hint="pip install --force-reinstall 'costream[pose]'",
        ) from error


@cache
def _bundle() -> bytes:
    """Return MediaPipe's two networks as the bundle that its PoseLandmarker needs.

    The files in the wheel lack the input normalisation that a bundle must have: -1 to 1 for the
    detector, 0 to 1 for the joints.
    """
    import mediapipe
    from mediapipe.tasks.python.metadata.metadata_writers.metadata_writer import MetadataWriter

    folder = Path(mediapipe.__file__).parent / "modules"
    parts = (
        ("pose_detector", "pose_detection/pose_detection", 127.5, 127.5),
        ("pose_landmarks_detector", "pose_landmark/pose_landmark_full", 0.0, 255.0),
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as bundle:
        for name, path, mean, deviation in parts:
            network = (folder / f"{path}.tflite").read_bytes()
            writer = MetadataWriter.create(bytearray(network))
            writer.add_image_input(norm_mean=[mean], norm_std=[deviation])
            bundle.writestr(f"{name}.tflite", bytes(writer.populate()[0]))
    return out.getvalue()
