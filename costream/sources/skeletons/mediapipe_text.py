"""Reading of MediaPipe's results as Python prints them: "landmark {" and "NormalizedLandmark("."""

from __future__ import annotations

import re
from typing import Any

from costream.core.errors import SourceError
from costream.core.layouts import MEDIAPIPE_33
from costream.sources.file import read_all
from costream.sources.skeletons.pose_json import pose_take
from costream.sources.skeletons.skeleton_format import SkeletonInput, skeleton_format
from costream.sources.skeletons.take import Take

_BEGIN = re.compile(
    r"(?:pose_)?(?:world_)?landmarks? ?\{|PoseLandmarkerResult\(|\[*(Normalized)?Landmark\("
)
# A landmark, in either form, or the result of a frame without a person.
_LANDMARK = re.compile(
    r"\blandmark\s*\{([^}]*)\}|\b(Normalized)?Landmark\(([^)]*)\)|^(None|\[\])$|"
    r"PoseLandmarkerResult\(pose_landmarks=(\[\])",
    re.MULTILINE,
)
_VALUE = re.compile(r"\b(x|y|z|visibility)\s*[:=]\s*(-?[\d.]+(?:e[-+]?\d+)?)", re.IGNORECASE)


def is_printed(source: SkeletonInput) -> bool:
    """Return whether the first line is that of a printed result."""
    return source.is_text and _BEGIN.match(source.first_line) is not None


@skeleton_format("mediapipe-text", sniff=is_printed, order=5)
def read_printed(source: SkeletonInput) -> Take:
    """Return the take of a text with 33 landmarks for each frame; those in metres, if printed.

    Raises SourceError for another number of landmarks, UsageError without a rate.
    """
    text = read_all(source.file).decode("utf-8-sig", "replace")
    count = len(MEDIAPIPE_33.joints)
    found = list(_LANDMARK.finditer(text))
    in_metres = any(match[3] and not match[2] for match in found)
    frames: list[dict[str, Any]] = []
    body: list[dict[str, float]] = []
    for match in found:
        if match[4] or match[5]:
            frames.append({"landmarks": []})
        elif not (in_metres and match[2]):  # fractions of the picture, with metres beside them
            body.append(_values(match[1] or match[3] or ""))
        if len(body) == count:
            frames.append({"landmarks": body})
            body = []
    if not any(frame["landmarks"] for frame in frames):
        what = f"{len(body)} landmarks are no body, which has {count}"
        raise SourceError(what, where=source.where, hint="print the result of each frame")
    return pose_take(frames, MEDIAPIPE_33.joints, source.rate_hz, source.where)


def _values(text: str) -> dict[str, float]:
    """Return the numbers of a landmark; protocol buffers leave out those that are 0."""
    found = {name.lower(): float(value) for name, value in _VALUE.findall(text)}
    return {"x": 0.0, "y": 0.0, "z": 0.0, **found}
