"""What is known of recordings without reading them: whether they are some, and how long."""

from __future__ import annotations

from costream.errors import SourceError, UsageError
from costream.sources.arrays import split_video
from costream.sources.opening import audio_stream, open_container, video_stream
from costream.sources.registry import open_source, sniff
from costream.sources.timing import end_s, length_is_guessed

_ARRAYS = (".npy", ".npz", ".pickle", ".pkl", ".p")  # their rate is the model's


def is_recording(source: str) -> bool:
    """Say whether a file can be opened as media or joints, or looks like features."""
    try:
        kind = sniff(source)
        if kind == "skeleton":
            _skeleton_length_s(source)
        elif kind == "video":
            open_container(source).close()
    except (SourceError, UsageError):
        return False
    return True


def length_s(source: str) -> float | None:
    """Give the length of a recording in seconds; None where it is not known.

    So it is of arrays, and of what cannot be opened: whoever reads it says why.
    """
    if split_video(source)[0].lower().endswith(_ARRAYS):
        return None
    try:
        if sniff(source) == "skeleton":
            return _skeleton_length_s(source)
        with open_container(source) as container:
            has_pictures = any(stream.codec_context for stream in container.streams.video)
            stream = (video_stream if has_pictures else audio_stream)(container, source)
            return None if length_is_guessed(container, stream) else end_s(container, stream)
    except (SourceError, UsageError):
        return None


def _skeleton_length_s(source: str) -> float | None:
    skeletons = open_source(source)
    try:
        return skeletons.open().duration_s
    finally:
        skeletons.close()
